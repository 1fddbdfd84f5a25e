"""Words for the objective and bound that a paper's program states by its own model."""

from __future__ import annotations

from benchmarks.table import milliseconds
from placewire.optimizer.published.comparison.ranking import seconds_to_gap
from placewire.optimizer.published.comparison.rows import Row

# Where the thesis' solver ends.
GAP = 0.10


def own_cells(row: Row) -> tuple[str, str]:
    """(its objective in ms, the seconds until its solver was within GAP of its own bound)"""
    reached = seconds_to_gap(row, GAP)
    return (
        "-" if row.own_seconds is None else milliseconds(row.own_seconds),
        "-" if reached is None else f"{reached:.1f}",
    )
