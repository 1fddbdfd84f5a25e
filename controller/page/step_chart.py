"""The picture of measured steps beside the predicted one, and that of the loss."""

from __future__ import annotations

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
    """ticks: (pixel, words)."""

    drawn: tuple[Line, ...]
    levels: tuple[Level, ...]
    value_ticks: tuple[tuple[float, str], ...]
    step_ticks: tuple[tuple[float, str], ...]


def step_chart(report: RunReport) -> Chart | None:
    """None where no step's time is known."""
    if not report.step_seconds:
        return None
    known = {"predicted": report.predicted_step_seconds, "bound": report.bound_seconds}
    levels = {kind: seconds for kind, seconds in known.items() if seconds is not None}
    x = _steps(report.first_step, len(report.step_seconds))
    y = Scale(0.0, _ROOM * max(*report.step_seconds, *levels.values(), 1e-9), HEIGHT, upwards=True)
    return Chart(
        drawn=lines(_numbers(report.first_step, report.step_seconds), report.step_seconds, x, y),
        levels=tuple(
            Level(y.at(seconds), f"{kind} {format_seconds(seconds)}", kind)
            for kind, seconds in levels.items()
        ),
        value_ticks=tuple((y.at(s), format_seconds(s)) for s in y.ticks(4) if s),
        step_ticks=_step_ticks(x),
    )


def loss_chart(report: RunReport) -> Chart | None:
    """None where fewer than two losses are known."""
    known = [loss for loss in report.losses if loss is not None]
    if len(known) < 2:
        return None
    x = _steps(report.first_step, len(report.losses))
    low, high = min(known), max(known)
    y = Scale(low, high if high > low else low + 1.0, HEIGHT, upwards=True)
    return Chart(
        drawn=lines(_numbers(report.first_step, report.losses), report.losses, x, y),
        levels=(),
        value_ticks=tuple((y.at(loss), f"{loss:g}") for loss in y.ticks(4)),
        step_ticks=_step_ticks(x),
    )


def _steps(first: int, count: int) -> Scale:
    return Scale(first, first + max(count - 1, 1), WIDTH)


def _numbers(first: int, values: tuple[float | None, ...] | tuple[float, ...]) -> range:
    return range(first, first + len(values))


def _step_ticks(x: Scale) -> tuple[tuple[float, str], ...]:
    return tuple((x.at(step), f"{step:g}") for step in x.ticks(8) if step.is_integer())
