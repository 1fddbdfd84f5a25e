"""Geometry of pictures: scales, axes and lines in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# So that a page of a long run stays small: a line has at most this many points.
MOST_POINTS = 600
MOST_STEP_MARKS = 40


@dataclass(frozen=True)
class Scale:
    """Maps low..high to pixels from `begin` on; upwards where the value grows from the bottom."""

    low: float
    high: float
    pixels: float
    upwards: bool = False
    begin: float = 0.0

    def at(self, value: float) -> float:
        span = self.high - self.low
        part = (value - self.low) / span if span > 0 else 0.0
        return round(self.begin + self.pixels * (1.0 - part if self.upwards else part), 1)

    def ticks(self, most: int = 4) -> tuple[float, ...]:
        """Multiples of 1, 2 or 5 times a power of ten, which cut the scale into at most so many
        whole parts."""
        span = self.high - self.low
        if not (math.isfinite(span) and span > 0):
            return (self.low,)
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next(k * power for k in (1, 2, 5, 10) if span / (k * power) <= most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(float(f"{k * step:.12g}") for k in range(first, last + 1))


def second_ticks(x: Scale, most: int) -> tuple[tuple[float, str], ...]:
    """(pixel, words) of an axis of seconds, as Scale.ticks cuts it."""
    return tuple((x.at(seconds), f"{seconds:g} s") for seconds in x.ticks(most))


def step_marks(end_seconds: Sequence[float], x: Scale) -> tuple[int, tuple[float, ...]]:
    """Of how many steps one has a mark, so that there are at most MOST_STEP_MARKS; and where these
    steps ended."""
    every = max(1, math.ceil(len(end_seconds) / MOST_STEP_MARKS))
    return every, tuple(x.at(seconds) for seconds in end_seconds[every - 1 :: every])


@dataclass(frozen=True)
class Line:
    """points: of an SVG polyline. Where a value is missing a line ends and another begins."""

    points: str


def lines(xs: Sequence[float], ys: Sequence[float | None], x: Scale, y: Scale) -> tuple[Line, ...]:
    """Of more than MOST_POINTS values each MOST_POINTS-th part is drawn as its largest one, so that
    no peak is lost."""
    every = max(1, math.ceil(len(xs) / MOST_POINTS))
    made: list[list[str]] = [[]]
    for k in range(0, len(xs), every):
        known = [value for value in ys[k : k + every] if value is not None]
        if known:
            made[-1].append(f"{x.at(xs[k]):g},{y.at(max(known)):g}")
        elif made[-1]:
            made.append([])
    return tuple(Line(" ".join(_visible(points))) for points in made if points)


def _visible(points: list[str]) -> list[str]:
    """A line of one point is drawn as a short one."""
    if len(points) > 1:
        return points
    x, y = points[0].split(",")
    return [*points, f"{float(x) + 1:g},{y}"]
