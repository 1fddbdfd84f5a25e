"""Draws how much of its rate each NIC received over time, of several runs on the same scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.job.nic_use import parts_of_rate, received
from placewire.controller.page.chart import Scale, lines
from placewire.controller.records.nic_use import NicUse

WIDTH, HEIGHT = 760, 84
# Of the whole picture: the room beside the lanes, above a run's first one, and between two lanes.
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


def picture(runs: Mapping[str, NicUse]) -> Picture:
    """runs: by title, from top to bottom."""
    highest = max(received(use, row).peak for use in runs.values() for row in use.nics)
    end = max(use.seconds[-1] for use in runs.values())
    x, y = Scale(0.0, end, WIDTH), Scale(0.0, max(1.0, highest), HEIGHT, upwards=True)
    panels, at = [], 0
    for title, use in runs.items():
        title_at, at = at + 16, at + _ABOVE
        lanes = []
        for number, row in enumerate(use.nics):
            had = received(use, row)
            words = f"{row.nic} receives {had.mean:.0%} of its rate, at most {had.peak:.0%}"
            lanes.append(Lane(at, words, number, _areas(use, parts_of_rate(use, row), x, y)))
            at += HEIGHT + _BETWEEN
        marks = tuple(x.at(seconds) for seconds in use.step_end_seconds)
        panels.append(Panel(title, title_at, tuple(lanes), marks))
    return Picture(
        height=at,
        panels=tuple(panels),
        percent_ticks=tuple((y.at(part), f"{part:.0%}") for part in (0.0, 0.5, 1.0)),
        second_ticks=tuple((x.at(seconds), f"{seconds:g} s") for seconds in x.ticks(10)),
    )


def _areas(use: NicUse, parts: Sequence[float | None], x: Scale, y: Scale) -> tuple[str, ...]:
    """Between two samples the height is the rate between them, so that an area is the bytes."""
    ends = [end for both in pairwise(use.seconds) for end in both]
    heights = [part for part in parts for _ in range(2)]
    return tuple(_closed(line.points) for line in lines(ends, heights, x, y))


def _closed(points: str) -> str:
    """Closes a line along the lane's lower edge."""
    (first, _), *_, (last, _) = (point.split(",") for point in points.split())
    return f"{first},{HEIGHT} {points} {last},{HEIGHT}"


def svg(drawn: Picture) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("nic_use.svg.j2").render(
        picture=drawn, lane_width=WIDTH, lane_height=HEIGHT, left=_LEFT,
        width=_LEFT + WIDTH + _RIGHT,
    )  # fmt: skip
