"""Shows promised and measured rates, of queues and of messages."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.records.report import CalibratedRow
from placewire.controller.show.console import table
from placewire.optimizer.quantities import format_seconds


def links_table(links: Sequence[LinkMeasurement]) -> Table:
    made = table(
        "Promised and measured payload rates, Mbit/s",
        words=("from", "to", "NIC"),
        figures=("queue", "HTB rate", "promised", "measured", "off by", ""),
    )
    for m in links:
        off = m.measured_bits_per_second / m.promised_bits_per_second - 1
        is_floor = m.at_most_bits_per_second > m.promised_bits_per_second
        broken = Text("failed" if m.error else "broken", style="red")
        kept = m.within_tolerance and not m.error
        made.add_row(
            m.source, m.destination, m.nic, str(m.queue_id),
            f"{m.wire_bits_per_second / 1e6:.2f}",
            f"{'≥ ' if is_floor else ''}{m.promised_bits_per_second / 1e6:.2f}",
            f"{m.measured_bits_per_second / 1e6:.2f}",
            # More than a floor is what the queue borrowed, and no error.
            "" if is_floor and kept and off > 0 else f"{off:+.1%}",
            Text("kept", style="green") if kept else broken,
        )  # fmt: skip
    return made


def link_errors(links: Sequence[LinkMeasurement]) -> list[Text]:
    return [
        Text(f"  {m.source} to {m.destination} on {m.nic}: {' '.join(m.error.split())}", "red")
        for m in links
        if m.error
    ]


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
