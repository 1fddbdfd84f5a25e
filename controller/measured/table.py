"""What was calibrated, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from controller.report import CalibratedRow
from optimizer.quantities import format_seconds


def calibrated_table(rows: Sequence[CalibratedRow]) -> Table:
    table = Table(title="What messages pay, rates in Mbit/s of payload", title_justify="left")
    for heading in ("from", "to", "rail"):
        table.add_column(heading, overflow="fold")
    for heading in ("set-up planned", "measured", "rate promised", "measured", "off by"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        promised, rate = row.promised_bits_per_second, row.bits_per_second
        table.add_row(
            row.source, row.destination, row.rail,
            format_seconds(row.planned_setup_seconds), format_seconds(row.setup_seconds),
            "" if promised is None else f"{promised / 1e6:.2f}",
            f"{rate / 1e6:.2f}",
            "" if promised is None else f"{rate / promised - 1:+.1%}",
        )  # fmt: skip
    return table
