"""Decides which of a job's checkpoints are old. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def old_checkpoints(steps: Sequence[int], keep: int, last_finite_step: int) -> tuple[int, ...]:
    """Returns those that are to be removed. steps: after how many steps each was saved, the one of
    now included. last_finite_step: the number of the last step whose loss was finite; -1: of none.

    The `keep` latest stay. While losses are not finite, one more stays: the last whose parameters
    gave a finite loss, as those after n steps do in step n. Where none is left that did, the one
    right after the last finite loss stays, which the update of that step may have spoilt.
    """
    ordered = sorted(steps)
    staying = set(ordered[-keep:])
    if last_finite_step < ordered[-1] - 1:
        good = [step for step in ordered if step <= last_finite_step]
        doubtful = [step for step in ordered if step == last_finite_step + 1]
        staying.update((good or doubtful)[-1:])
    return tuple(step for step in ordered if step not in staying)
