"""The outcome of one operation of the keeper: what it changed, and what it could not change."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from placewire.agent.contract.state import Change, Refusal
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import LeaseRefusedError
from placewire.agent.reconcile.steps import Step

log = logging.getLogger(__name__)

KEEPS_TRYING = "repair that; the agent keeps trying"
# Where drift is only reported.
PUT_IT_RIGHT = "put it right, or apply the plan again"


class Outcome(NamedTuple):
    """read_back: whether the operation has just read back the whole state, as it should be."""

    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    read_back: bool = False


NOTHING_DONE = Outcome()


class NotAsAppliedError(Exception):
    """The read-back does not show what was applied; the message says what differs. steps: those
    that were taken all the same. is_due: whether they may succeed later, as nothing of others
    keeps them from it."""

    def __init__(self, what: str, steps: Sequence[Step] = (), *, is_due: bool = False) -> None:
        super().__init__(what)
        self.steps, self.is_due = tuple(steps), is_due


def changes_of(steps: Sequence[Step]) -> tuple[Change, ...]:
    return tuple(step.as_change() for step in steps)


def text_of(error: Exception) -> str:
    """The error for a report. An unforeseen one is a mistake in the agent: it is logged whole."""
    if isinstance(error, (EffectError, NotAsAppliedError, LeaseRefusedError)):
        return str(error)
    log.error("unexpected", exc_info=error)
    what = f"the agent failed: {type(error).__name__}: {error}"
    return f"{what}; see the agent's log, and report it"
