"""Follows whether losses are finite. A training that diverges is the user's matter, and goes on: it
is told, and its last good checkpoint is kept."""

from __future__ import annotations

import math

from placewire.job.contract.specification import NonFinite, RankSpec
from placewire.job.placed.resume import Beginning
from placewire.job.placed.told_progress import Tell

# With a scaler, single losses may be infinite again and again, and harm nothing.
_TOLD_AT_MOST = 3
# So many steps in a row are no single ones, and are told of in any case.
_DIVERGES_AFTER = 20


class Losses:
    """Of the steps whose loss this rank computes. last_finite_step: the last of them that was
    finite, or the last one before the job resumed; -1: none."""

    def __init__(self, spec: RankSpec, beginning: Beginning) -> None:
        self.last_finite_step = beginning.last_finite_step
        self._spec = spec
        # A checkpoint that tells so was told of when the job resumed.
        self._is_told = beginning.last_finite_step < beginning.step - 1
        self._began, self._in_a_row = beginning.last_finite_step + 1, 0
        self._told = 0

    def after(self, step: int, loss: float | None, kind: NonFinite | None, tell: Tell) -> None:
        """loss: where it is finite. kind: what it is where it is not. Neither is known where
        another rank computes the loss. tell: gets a sentence where losses become so, or stay so
        and nothing was said of it."""
        if kind is None:
            if loss is not None:
                self.last_finite_step, self._in_a_row, self._is_told = step, 0, False
            return
        self._in_a_row += 1
        if self._is_told:
            return
        if self._in_a_row == 1:
            self._began = step
            if self._told == _TOLD_AT_MOST:
                return
            self._told += 1
        elif self._in_a_row < _DIVERGES_AFTER:
            return
        self._is_told = True
        tell(_told(self._spec, self._began, step, kind))


def non_finite(loss: float) -> NonFinite | None:
    """None where it is finite."""
    if math.isfinite(loss):
        return None
    return "nan" if math.isnan(loss) else "inf" if loss > 0 else "-inf"


def _told(spec: RankSpec, began: int, step: int, kind: NonFinite) -> str:
    """began: the first such step of those up to this one."""
    what = f"the loss of step {step} is {kind}"
    if began < step:
        what = f"no loss from step {began} to step {step} was finite, and the last is {kind}"
    skipped = kept = ""
    back = "begin it anew"
    if spec.optimizer.scaler is not None:
        skipped = " (where the metric `skipped` is 1, the scaler left the parameters as they were)"
    if spec.checkpoint is not None:
        kept = (
            ", and the last checkpoint whose parameters gave a finite loss is kept beyond "
            "job.checkpoint.keep until a loss is finite again"
        )
        back = f"move its checkpoints after {began} and more steps away, and go on"
    return (
        f"{what}{skipped}. The training goes on{kept}. Where losses "
        f"stay so, end the job, {back} with a lower job.optimizer.lr, a longer warm-up or "
        f"job.optimizer.clip_norm, or without what is wrong in the batch of step {began}"
    )
