"""What ranks told of their steps, as the report of a run has it. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from placewire.frozen import Frozen
from placewire.job.contract.specification import RankEvent, StepDone, Validated


class ValidationRow(Frozen):
    """After `step` steps, the means of the loss and of each metric over `batches` batches; None and
    left out where they are not finite. seconds: how long the validation took."""

    step: int
    batches: int
    loss: float | None
    metrics: Mapping[str, float]
    seconds: float


def steps_done(events: Sequence[RankEvent], ranks: int, first_step: int = 0) -> range:
    """The steps that every rank ended, without a gap from first_step on. A rank that ended a step
    in which another failed does not make it a step of the job."""
    by_step: dict[int, set[int]] = defaultdict(set)
    for event in events:
        if isinstance(event, StepDone):
            by_step[event.step].add(event.rank)
    everybody, end = set(range(ranks)), first_step
    while by_step.get(end) == everybody:
        end += 1
    return range(first_step, end)


def step_times(events: Sequence[RankEvent], steps: range) -> tuple[float, ...]:
    """Returns seconds of each of these steps, of its slowest rank."""
    slowest: dict[int, float] = defaultdict(float)
    for event in events:
        if isinstance(event, StepDone):
            slowest[event.step] = max(slowest[event.step], event.seconds)
    return tuple(slowest[step] for step in steps)


def losses(events: Sequence[RankEvent], steps: range) -> tuple[float | None, ...]:
    """Returns the loss of each of these steps, None where it is not finite; nothing where no rank
    computes one."""
    by_step = {
        event.step: event.loss
        for event in events
        if isinstance(event, StepDone) and (event.loss is not None or event.non_finite_loss)
    }
    return tuple(by_step.get(step) for step in steps) if by_step else ()


def metrics(events: Sequence[RankEvent], steps: range) -> dict[str, tuple[float | None, ...]]:
    """Returns by name the metric of each of these steps, None where it is not finite."""
    found: dict[str, dict[int, float]] = {}
    for event in events:
        if isinstance(event, StepDone):
            for name, value in event.metrics.items():
                found.setdefault(name, {})[event.step] = value
    return {name: tuple(by_step.get(k) for k in steps) for name, by_step in found.items()}


def validations(events: Sequence[RankEvent]) -> tuple[ValidationRow, ...]:
    """Of a validation that was interrupted, what it had computed by then."""
    last = {event.step: event for event in events if isinstance(event, Validated)}
    return tuple(
        ValidationRow(
            step=one.step,
            batches=one.batches,
            loss=one.loss,
            metrics=one.metrics,
            seconds=one.seconds,
        )
        for one in last.values()
    )


def typical_step(steps: Sequence[float]) -> float | None:
    """The median without the first, which warms up, unless it is alone; None of no step."""
    return statistics.median(steps[1:] if len(steps) > 1 else steps) if steps else None
