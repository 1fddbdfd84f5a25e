"""How busy NICs were, of more servers than there is room for a picture each: a strip for each NIC,
which is the darker the nearer the NIC is to its rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from placewire.controller.page.chart import Scale, second_ticks, step_marks
from placewire.controller.page.nic_panels import busiest, rates
from placewire.controller.records.nic_use import NicUse

WIDTH = 320
_MOST_COLUMNS = 160
# Levels of how much of its rate a NIC carries; below the first one it is idle.
_LEVELS = 8
_IDLE_PART = 0.01


@dataclass(frozen=True)
class StripPart:
    """x, width: in pixels of WIDTH. percent: how strong its colour is."""

    x: float
    width: float
    percent: int


@dataclass(frozen=True)
class Strip:
    server: str
    title: str
    sent: tuple[StripPart, ...]
    received: tuple[StripPart, ...]


@dataclass(frozen=True)
class RailStrips:
    rail: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class NicStrips:
    """As nic_panels.NicPanels has them."""

    rails: tuple[RailStrips, ...]
    step_marks: tuple[float, ...]
    every_step: int
    second_ticks: tuple[tuple[float, str], ...]


def nic_strips(use: NicUse) -> NicStrips:
    end = max([*use.seconds, *use.step_end_seconds], default=0.0)
    x = Scale(0.0, end, WIDTH)
    by_rail: dict[str, list[Strip]] = {}
    for row in use.nics:
        sent, received = rates(use.seconds, row.sent_bytes), rates(use.seconds, row.received_bytes)
        by_rail.setdefault(row.rail, []).append(
            Strip(
                server=row.server,
                title=f"{row.server} {row.nic}: {busiest(row, sent, received)}",
                sent=_parts(use.seconds, sent, row.rate_bits_per_second, x),
                received=_parts(use.seconds, received, row.rate_bits_per_second, x),
            )
        )
    every, marks = step_marks(use.step_end_seconds, x)
    return NicStrips(
        rails=tuple(RailStrips(rail, tuple(strips)) for rail, strips in by_rail.items()),
        step_marks=marks,
        every_step=every * use.steps_each,
        second_ticks=second_ticks(x, 4),
    )


def _parts(
    seconds: Sequence[float], carried: Sequence[float | None], rate: float, x: Scale
) -> tuple[StripPart, ...]:
    """Each column is as dark as the busiest of its samples. Neighbours of one level are one part;
    what is not known is left out, as is an idle time."""
    every = max(1, math.ceil(len(carried) / _MOST_COLUMNS))
    columns = []
    for k in range(0, len(carried), every):
        known = [value for value in carried[k : k + every] if value is not None]
        ends = seconds[k], seconds[min(k + every, len(carried))]
        columns.append((_level(max(known) / rate) if known else 0, *ends))
    made = []
    for level, some in groupby(columns, key=lambda column: column[0]):
        of_level = list(some)
        if level:
            begin, end = x.at(of_level[0][1]), x.at(of_level[-1][2])
            made.append(StripPart(begin, round(end - begin, 1), round(100 * level / _LEVELS)))
    return tuple(made)


def _level(part: float) -> int:
    return 0 if part < _IDLE_PART else math.ceil(min(part, 1.0) * _LEVELS)
