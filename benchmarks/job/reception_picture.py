"""Draws how much of its rate each NIC received over time, of several runs on the same scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.job.reception import Reception, parts_of_rate, use_of
from placewire.controller.page.chart import Scale, lines, second_ticks, step_marks
from placewire.controller.page.templates import templates

WIDTH, HEIGHT = 760, 84
# These are the picture's rooms: beside the lanes, above a run's first one, and between two lanes.
_LEFT, _RIGHT, _ABOVE, _BETWEEN = 64, 20, 38, 38


@dataclass(frozen=True)
class Lane:
    """A NIC. top: pixels from the picture's upper edge. colour: the number of its rail's colour.
    areas: points of SVG polygons, from the lane's upper left corner; there are several where counts
    are missing between."""

    top: int
    words: str
    colour: int
    areas: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """A run. title_at: the title's baseline. step_marks: where steps ended."""

    title: str
    title_at: int
    lanes: tuple[Lane, ...]
    step_marks: tuple[float, ...]


@dataclass(frozen=True)
class Picture:
    """percent_ticks, second_ticks: (pixel, words) of the axes, which all lanes share."""

    height: int
    panels: tuple[Panel, ...]
    percent_ticks: tuple[tuple[float, str], ...]
    second_ticks: tuple[tuple[float, str], ...]


def picture(runs: Mapping[str, Reception]) -> Picture:
    """runs: by title, from top to bottom."""
    highest = max(use_of(had, row).peak for had in runs.values() for row in had.nics)
    end = max(had.seconds[-1] for had in runs.values())
    x, y = Scale(0.0, end, WIDTH), Scale(0.0, max(1.0, highest), HEIGHT, upwards=True)
    panels, at = [], 0
    for title, had in runs.items():
        title_at, at = at + 16, at + _ABOVE
        lanes = []
        for number, row in enumerate(had.nics):
            use = use_of(had, row)
            words = f"{row.nic} receives {use.mean:.0%} of its rate, at most {use.peak:.0%}"
            lanes.append(Lane(at, words, number, _areas(had, parts_of_rate(had, row), x, y)))
            at += HEIGHT + _BETWEEN
        _, marks = step_marks(had.step_end_seconds, x)
        panels.append(Panel(title, title_at, tuple(lanes), marks))
    return Picture(
        height=at,
        panels=tuple(panels),
        percent_ticks=tuple((y.at(part), f"{part:.0%}") for part in (0.0, 0.5, 1.0)),
        second_ticks=second_ticks(x, 10),
    )


def _areas(had: Reception, parts: Sequence[float | None], x: Scale, y: Scale) -> tuple[str, ...]:
    """Between two samples the height is the rate between them, so that an area is the bytes."""
    ends = [end for both in pairwise(had.seconds) for end in both]
    heights = [part for part in parts for _ in range(2)]
    return tuple(_closed(line.points) for line in lines(ends, heights, x, y))


def _closed(points: str) -> str:
    """Closes a line along the lane's lower edge."""
    (first, _), *_, (last, _) = (point.split(",") for point in points.split())
    return f"{first},{HEIGHT} {points} {last},{HEIGHT}"


def svg(drawn: Picture) -> str:
    return templates(Path(__file__).parent).get_template("reception.svg.j2").render(
        picture=drawn, lane_width=WIDTH, lane_height=HEIGHT, left=_LEFT,
        width=_LEFT + WIDTH + _RIGHT,
    )  # fmt: skip
