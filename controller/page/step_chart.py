"""The pictures of measured steps beside the predicted one, of the loss and of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewire.controller.page.chart import Line, Scale, lines
from placewire.controller.records.report import RunReport
from placewire.optimizer.quantities import format_seconds

WIDTH, HEIGHT = 680, 150
_ROOM = 1.1


@dataclass(frozen=True)
class Level:
    """A horizontal line at a known value."""

    y: float
    words: str
    kind: str


@dataclass(frozen=True)
class Chart:
    """validated: what validations found of the same. ticks: (pixel, words)."""

    words: str
    drawn: tuple[Line, ...]
    validated: tuple[Line, ...]
    levels: tuple[Level, ...]
    value_ticks: tuple[tuple[float, str], ...]
    step_ticks: tuple[tuple[float, str], ...]


def step_chart(report: RunReport) -> Chart | None:
    """None where no step's time is known."""
    if not report.step_seconds:
        return None
    known = {"predicted": report.predicted_step_seconds, "bound": report.bound_seconds}
    levels = {kind: seconds for kind, seconds in known.items() if seconds is not None}
    x = _steps(report, len(report.step_seconds))
    y = Scale(0.0, _ROOM * max(*report.step_seconds, *levels.values(), 1e-9), HEIGHT, upwards=True)
    return Chart(
        words=f"Time of {_longest_of(report.steps_each)}, of its slowest device",
        validated=(),
        drawn=lines(_numbers(report, report.step_seconds), report.step_seconds, x, y),
        levels=tuple(
            Level(y.at(seconds), f"{kind} {format_seconds(seconds)}", kind)
            for kind, seconds in levels.items()
        ),
        value_ticks=tuple((y.at(s), format_seconds(s)) for s in y.ticks(4) if s),
        step_ticks=_step_ticks(x),
    )


def value_charts(report: RunReport) -> tuple[Chart, ...]:
    """The loss and each metric, with what validations found of it; those of which fewer than two
    values are known are left out."""
    trained = {"loss": report.losses, **report.metrics}
    found = []
    for name, values in trained.items():
        validated = [
            (row.step, row.loss if name == "loss" else row.metrics.get(name))
            for row in report.validations
        ]
        known = [v for v in (*values, *(value for _, value in validated)) if v is not None]
        if len(known) < 2:
            continue
        x = _steps(report, len(values))
        low, high = min(known), max(known)
        y = Scale(low, high if high > low else low + 1.0, HEIGHT, upwards=True)
        found.append(
            Chart(
                words=f"The {name} of {_each(report.steps_each)}",
                drawn=lines(_numbers(report, values), values, x, y),
                validated=lines([at for at, _ in validated], [v for _, v in validated], x, y),
                levels=(),
                value_ticks=tuple((y.at(value), f"{value:g}") for value in y.ticks(4)),
                step_ticks=_step_ticks(x),
            )
        )
    return tuple(found)


def _longest_of(steps: int) -> str:
    return "each step" if steps == 1 else f"the longest of each {steps} steps"


def _each(steps: int) -> str:
    return "each step" if steps == 1 else f"each {steps}th step"


def _steps(report: RunReport, count: int) -> Scale:
    first = report.first_step
    return Scale(first, first + max(count - 1, 1) * report.steps_each, WIDTH)


def _numbers(report: RunReport, values: Sequence[float | None]) -> range:
    first, each = report.first_step, report.steps_each
    return range(first, first + len(values) * each, each)


def _step_ticks(x: Scale) -> tuple[tuple[float, str], ...]:
    return tuple((x.at(step), f"{step:g}") for step in x.ticks(8) if step.is_integer())
