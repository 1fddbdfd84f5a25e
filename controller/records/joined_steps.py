"""Joins what all ranks report of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewire.job.contract.specification import StepDone

# Ranks meet before each step. So many may be under way all the same where one rank is heard late,
# as from a slow server. Where a rank tells no steps, those of others must not pile up.
MOST_UNDER_WAY = 2**14


@dataclass(frozen=True)
class Step:
    """seconds: of the slowest rank. loss: None where no rank computes one; it may be no finite
    number. metrics: those that are finite, of all ranks. bucket: of its batch, where batches have
    several shapes. load_seconds: how long the rank that read longest read its batch before."""

    number: int
    seconds: float
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    bucket: str | None = None
    load_seconds: float = 0.0

    def __str__(self) -> str:
        bucket = "" if self.bucket is None else f" ({self.bucket})"
        told = reported(self.loss, self.metrics)
        return f"step {self.number}{bucket}: {self.seconds:.3f} s{told}"


@dataclass(slots=True)
class _UnderWay:
    """ranks: how many told of it so far."""

    ranks: int = 0
    seconds: float = 0.0
    load_seconds: float = 0.0
    loss: float | None = None
    metrics: dict[str, float] | None = None


class Steps:
    """Ranks end a step at different times, and their events come in any order. Each rank tells of
    a step once (controller/launch/followed.py)."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._under_way: dict[int, _UnderWay] = {}

    def ended(self, event: StepDone) -> Step | None:
        """Returns the step where this is its last missing event, else None."""
        step = self._under_way.setdefault(event.step, _UnderWay())
        step.ranks += 1
        step.seconds = max(step.seconds, event.seconds)
        step.load_seconds = max(step.load_seconds, event.load_seconds)
        if step.loss is None:  # Several ranks may tell of it.
            step.loss = _loss(event)
        if event.metrics:
            step.metrics = step.metrics or {}
            for name, value in event.metrics.items():
                step.metrics[name] = max(value, step.metrics.get(name, value))
        if step.ranks < self._ranks:
            if len(self._under_way) > MOST_UNDER_WAY:
                del self._under_way[next(iter(self._under_way))]
            return None
        del self._under_way[event.step]
        # In one order, whichever rank's event comes first.
        metrics = dict(sorted((step.metrics or {}).items()))
        return Step(event.step, step.seconds, step.loss, metrics, event.bucket, step.load_seconds)


def _loss(event: StepDone) -> float | None:
    return event.loss if event.non_finite_loss is None else float(event.non_finite_loss)


def reported(loss: float | None, metrics: Mapping[str, float]) -> str:
    """What a line about a step ends with: `, loss 2.302585, accuracy 0.125`."""
    told = [] if loss is None else [f"loss {loss:.6f}"]
    told += [f"{name} {value:.6g}" for name, value in metrics.items()]
    return "".join(f", {one}" for one in told)
