"""Pictures of how busy each server's NICs were while its ranks ran, with the job's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewire.controller.page.chart import Line, Scale, lines, second_ticks, step_marks
from placewire.controller.records.nic_use import NicUse, NicUseRow
from placewire.optimizer.quantities import format_bits_per_second

# What is sent goes up from the middle, what is received down.
WIDTH, HEIGHT = 320, 100
# A NIC that never carries more than this part of its rate is idle: others ask for addresses on it.
_IDLE_PART = 1e-3


@dataclass(frozen=True)
class NicLines:
    """colour: the number of its rail's colour. busiest: the highest rate in words."""

    nic: str
    colour: int
    sent: tuple[Line, ...]
    received: tuple[Line, ...]
    busiest: str


@dataclass(frozen=True)
class ServerPanel:
    server: str
    nics: tuple[NicLines, ...]


@dataclass(frozen=True)
class NicPanels:
    """step_marks: where steps ended; every_step: one mark for so many steps. rate_ticks,
    second_ticks: (pixel, words) of the axes, which all panels share."""

    panels: tuple[ServerPanel, ...]
    rails: tuple[tuple[str, int], ...]
    step_marks: tuple[float, ...]
    every_step: int
    rate_ticks: tuple[tuple[float, str], ...]
    second_ticks: tuple[tuple[float, str], ...]


def nic_panels(use: NicUse) -> NicPanels:
    """A rate between two samples is drawn at the later one. Counters that went back, as a NIC's do
    that was made anew, give none."""
    times = use.seconds[1:]
    carried = [
        (row, rates(use.seconds, row.sent_bytes), rates(use.seconds, row.received_bytes))
        for row in use.nics
    ]
    seen = [rate for _, *both in carried for some in both for rate in some if rate is not None]
    highest = max([*seen, *(row.rate_bits_per_second for row in use.nics)], default=0.0)
    end = max([*use.seconds, *use.step_end_seconds], default=0.0)
    x, up = Scale(0.0, end, WIDTH), Scale(0.0, highest, HEIGHT / 2, upwards=True)
    down = Scale(0.0, highest, HEIGHT / 2, begin=HEIGHT / 2)
    rails = {rail: number for number, rail in enumerate(dict.fromkeys(n.rail for n in use.nics))}
    panels: dict[str, list[NicLines]] = {}
    for row, sent, received in carried:
        panels.setdefault(row.server, []).append(
            NicLines(
                nic=row.nic,
                colour=rails[row.rail],
                sent=lines(times, sent, x, up),
                received=lines(times, received, x, down),
                busiest=busiest(row, sent, received),
            )
        )
    every, marks = step_marks(use.step_end_seconds, x)
    return NicPanels(
        panels=tuple(ServerPanel(server, tuple(nics)) for server, nics in panels.items()),
        rails=tuple(rails.items()),
        step_marks=marks,
        every_step=every * use.steps_each,
        rate_ticks=tuple(
            (scale.at(r), format_bits_per_second(r))
            for scale in (up, down)
            for r in up.ticks(2)
            if r
        ),
        second_ticks=second_ticks(x, 4),
    )


def rates(seconds: Sequence[float], counted: Sequence[int | None]) -> tuple[float | None, ...]:
    """Bits per second between each two neighbouring samples; None where one is missing."""
    found: list[float | None] = []
    for k in range(1, len(seconds)):
        before, after, took = counted[k - 1], counted[k], seconds[k] - seconds[k - 1]
        if before is None or after is None or after < before or took <= 0:
            found.append(None)
        else:
            found.append(8 * (after - before) / took)
    return tuple(found)


def busiest(row: NicUseRow, sent: Sequence[float | None], received: Sequence[float | None]) -> str:
    known = [rate for rate in (*sent, *received) if rate is not None]
    if not known:
        return "not known"
    if max(known) < _IDLE_PART * row.rate_bits_per_second:
        return "idle"
    part = max(known) / row.rate_bits_per_second
    return f"at most {format_bits_per_second(max(known))}, {part:.0%} of its rate"
