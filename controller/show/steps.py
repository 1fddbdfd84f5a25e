"""Joins what all ranks report of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewire.job.contract.specification import StepDone


@dataclass(frozen=True)
class Step:
    """seconds: of the slowest rank. loss: None where no rank computes one; it may be no finite
    number. metrics: those that are finite, of all ranks. bucket: of its batch, where batches have
    several shapes."""

    number: int
    seconds: float
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    bucket: str | None = None

    def __str__(self) -> str:
        bucket = "" if self.bucket is None else f" ({self.bucket})"
        told = reported(self.loss, self.metrics)
        return f"step {self.number}{bucket}: {self.seconds:.3f} s{told}"


class Steps:
    """Ranks end a step at different times, and their events come in any order."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._under_way: dict[int, dict[int, StepDone]] = {}

    def ended(self, event: StepDone) -> Step | None:
        """Returns the step where this is its last missing event, else None."""
        by_rank = self._under_way.setdefault(event.step, {})
        by_rank[event.rank] = event
        if len(by_rank) < self._ranks:
            return None
        of_step = self._under_way.pop(event.step).values()
        losses = [loss for one in of_step if (loss := _loss(one)) is not None]
        # In one order, whichever rank's event comes first.
        metrics = dict(sorted(pair for one in of_step for pair in one.metrics.items()))
        seconds = max(one.seconds for one in of_step)
        loss = losses[0] if losses else None
        return Step(event.step, seconds, loss, metrics, event.bucket)


def _loss(event: StepDone) -> float | None:
    return event.loss if event.non_finite_loss is None else float(event.non_finite_loss)


def reported(loss: float | None, metrics: Mapping[str, float]) -> str:
    """What a line about a step ends with: `, loss 2.302585, accuracy 0.125`."""
    told = [] if loss is None else [f"loss {loss:.6f}"]
    told += [f"{name} {value:.6g}" for name, value in metrics.items()]
    return "".join(f", {one}" for one in told)
