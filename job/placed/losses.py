"""Follows whether losses are finite. A training that diverges is the user's matter, and goes on: it
is told, and its last good checkpoint is kept."""

from __future__ import annotations

import math

from placewire.job.contract.specification import NonFinite, RankSpec
from placewire.job.placed.resume import Beginning
from placewire.job.placed.told_progress import Tell

# With a scaler, single losses may be infinite again and again, and harm nothing.
_TOLD_AT_MOST = 3


class Losses:
    """Of the steps whose loss this rank computes. last_finite_step: the last of them that was
    finite, or the last one before the job resumed; -1: none."""

    def __init__(self, spec: RankSpec, beginning: Beginning) -> None:
        self.last_finite_step = beginning.last_finite_step
        self._spec = spec
        # A checkpoint that tells so was told of when the job resumed.
        self._diverges = beginning.last_finite_step < beginning.step - 1
        self._told = 0

    def after(self, step: int, loss: float | None, kind: NonFinite | None, tell: Tell) -> None:
        """loss: where it is finite. kind: what it is where it is not. Neither is known where
        another rank computes the loss. tell: gets a sentence where losses become so."""
        if kind is None:
            if loss is not None:
                self.last_finite_step, self._diverges = step, False
            return
        is_first, self._diverges = not self._diverges, True
        if is_first and self._told < _TOLD_AT_MOST:
            self._told += 1
            tell(_told(self._spec, step, kind))


def non_finite(loss: float) -> NonFinite | None:
    """None where it is finite."""
    if math.isfinite(loss):
        return None
    return "nan" if math.isnan(loss) else "inf" if loss > 0 else "-inf"


def _told(spec: RankSpec, step: int, kind: NonFinite) -> str:
    skipped = kept = ""
    back = "begin it anew"
    if spec.optimizer.scaler is not None:
        skipped = " (where its metric `skipped` is 1, the scaler left the parameters as they were)"
    if spec.checkpoint is not None:
        kept = (
            ", and the last checkpoint whose parameters gave a finite loss is kept beyond "
            "job.checkpoint.keep until a loss is finite again"
        )
        back = f"move its checkpoints after {step} and more steps away, and go on"
    return (
        f"the loss of step {step} is {kind}{skipped}. The training goes on{kept}. Where losses "
        f"stay so, end the job, {back} with a lower job.optimizer.lr, a longer warm-up or "
        "job.optimizer.clip_norm, or without what is wrong in that step's batch"
    )
