"""Shows promised and measured rates, of queues and of messages."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.records.report import CalibratedRow
from placewire.controller.show.console import table
from placewire.optimizer.quantities import format_seconds

# More rows than these are summed up by NIC, and only those that were not kept are shown, so many.
_MOST_LINKS, _MOST_BROKEN = 40, 20
# An error of more links than these is told once.
_MOST_ALIKE = 8


def links_tables(links: Sequence[LinkMeasurement], *, every_link: bool) -> list[Table | Text]:
    """One table of all rates; where they are many and not every one is asked for, a row for each
    NIC that sends, then those that were not kept."""
    if every_link or len(links) <= _MOST_LINKS:
        return [_links_table("Promised and measured payload rates, Mbit/s", links)]
    made: list[Table | Text] = [_by_nic_table(links)]
    broken = sorted((m for m in links if not _kept(m)), key=_off)
    if broken:
        worst = f"the worst {_MOST_BROKEN} of " if len(broken) > _MOST_BROKEN else ""
        title = f"Rates that were not kept, {worst}{len(broken)}, Mbit/s"
        made.append(_links_table(title, broken[:_MOST_BROKEN]))
    return [*made, Text("--full shows each rate; so does run.json", style="dim")]


def _by_nic_table(links: Sequence[LinkMeasurement]) -> Table:
    by_nic: dict[tuple[str, str], list[LinkMeasurement]] = {}
    for m in links:
        by_nic.setdefault((m.source, m.nic), []).append(m)
    made = table(
        f"{len(links)} promised and measured payload rates, by the NIC that sends, Mbit/s",
        words=("from", "NIC"),
        figures=("servers", "promised", "measured", "least", "most", "kept"),
    )
    for (source, nic), some in by_nic.items():
        kept = sum(map(_kept, some))
        made.add_row(
            source, nic, str(len(some)),
            f"{sum(m.promised_bits_per_second for m in some) / 1e6:.2f}",
            f"{sum(m.measured_bits_per_second for m in some) / 1e6:.2f}",
            f"{min(map(_off, some)):+.1%}", f"{max(map(_off, some)):+.1%}",
            Text("all", "green") if kept == len(some) else Text(f"{kept} of {len(some)}", "red"),
        )  # fmt: skip
    return made


def _off(m: LinkMeasurement) -> float:
    return m.measured_bits_per_second / m.promised_bits_per_second - 1


def _kept(m: LinkMeasurement) -> bool:
    return m.within_tolerance and not m.error


def _links_table(title: str, links: Sequence[LinkMeasurement]) -> Table:
    made = table(
        title,
        words=("from", "to", "NIC"),
        figures=("queue", "HTB rate", "promised", "measured", "off by", ""),
    )
    for m in links:
        is_floor = m.at_most_bits_per_second > m.promised_bits_per_second
        broken = Text("failed" if m.error else "broken", style="red")
        made.add_row(
            m.source, m.destination, m.nic, str(m.queue_id),
            f"{m.wire_bits_per_second / 1e6:.2f}",
            f"{'≥ ' if is_floor else ''}{m.promised_bits_per_second / 1e6:.2f}",
            f"{m.measured_bits_per_second / 1e6:.2f}",
            # More than a floor is what the queue borrowed, and no error.
            "" if is_floor and _kept(m) and _off(m) > 0 else f"{_off(m):+.1%}",
            Text("kept", style="green") if _kept(m) else broken,
        )  # fmt: skip
    return made


def link_errors(links: Sequence[LinkMeasurement]) -> list[Text]:
    """A line for each error. One that many links have, as that they did not run together, is told
    once, with the number of links."""
    by_error: dict[str, list[LinkMeasurement]] = {}
    for m in links:
        if m.error:
            by_error.setdefault(" ".join(m.error.split()), []).append(m)
    lines = []
    for error, some in by_error.items():
        where = [f"{m.source} to {m.destination} on {m.nic}" for m in some]
        if len(some) > _MOST_ALIKE:
            where = [f"{where[0]} and {len(some) - 1} others"]
        lines += [Text(f"  {one}: {error}", "red") for one in where]
    return lines


def calibrated_table(rows: Sequence[CalibratedRow]) -> Table:
    made = table(
        "What messages cost, rates in Mbit/s of payload",
        words=("from", "to", "rail"),
        figures=("set-up planned", "measured", "rate promised", "measured", "off by"),
    )
    for row in rows:
        promised, rate = row.promised_bits_per_second, row.bits_per_second
        made.add_row(
            row.source, row.destination, row.rail,
            format_seconds(row.planned_setup_seconds), format_seconds(row.setup_seconds),
            "" if promised is None else f"{promised / 1e6:.2f}",
            f"{rate / 1e6:.2f}",
            "" if promised is None else f"{rate / promised - 1:+.1%}",
        )  # fmt: skip
    return made
