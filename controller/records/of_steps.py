"""What ranks told of steps and validations, as the report of a run has it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from placewire.frozen import Frozen
from placewire.job.contract.specification import Validated


class ValidationRow(Frozen):
    """After `step` steps, the means of the loss and of each metric over `batches` batches; None and
    left out where they are not finite. seconds: how long the validation took."""

    step: int
    batches: int
    loss: float | None
    metrics: Mapping[str, float]
    seconds: float


def validation_rows(told: Iterable[Validated]) -> tuple[ValidationRow, ...]:
    return tuple(
        ValidationRow(
            step=one.step,
            batches=one.batches,
            loss=one.loss,
            metrics=one.metrics,
            seconds=one.seconds,
        )
        for one in told
    )


def typical_step(steps: Sequence[float]) -> float | None:
    """The median without the first, which warms up, unless it is alone; None of no step."""
    return statistics.median(steps[1:] if len(steps) > 1 else steps) if steps else None
