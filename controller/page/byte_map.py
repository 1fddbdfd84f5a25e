"""The bytes of a step as a matrix of pairs of devices, where their table would be too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewire.controller.page.matrix import Cell, Matrix, matrix, strength_percent
from placewire.controller.records.of_traffic import TrafficRow
from placewire.optimizer.quantities import format_bytes

# As in docs/how-to/read-a-report.md: beyond that, what was sent is not what was planned.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ByteMap:
    """most: what the pair that sends most sends, in words. off: how many pairs did not send what
    was planned."""

    matrix: Matrix
    most: str
    off: int


def byte_map(traffic: Sequence[TrafficRow], devices: Sequence[str]) -> ByteMap:
    """Adds up each pair's rails. devices: in the order of rows and columns."""
    planned: dict[tuple[str, str], float] = {}
    sent: dict[tuple[str, str], float] = {}
    for row in traffic:
        pair = row.source, row.destination
        planned[pair] = planned.get(pair, 0.0) + row.planned_bytes
        sent[pair] = sent.get(pair, 0.0) + row.sent_bytes
    most = max(sent.values(), default=0.0)
    cells = {
        (source, to): Cell(
            text="",
            title=f"{source} to {to}: planned {format_bytes(planned[source, to])}, "
            f"sent {format_bytes(some)}",
            strength_percent=strength_percent(some / most if most else 0.0),
            kept=abs(some - planned[source, to]) <= _TOLERANCE * planned[source, to],
        )
        for (source, to), some in sent.items()
    }
    named = dict.fromkeys([*devices, *(end for pair in sent for end in pair)])
    off = sum(not cell.kept for cell in cells.values())
    return ByteMap(matrix("", [*named], cells, small=True), format_bytes(most), off)
