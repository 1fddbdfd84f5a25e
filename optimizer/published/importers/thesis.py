"""Reads the node-link JSON of the authors of the thesis and of QuickP.

The top level has `nodes` and `links` (newer networkx writes `edges`). A node has `id`, `op_type`,
`mem` bytes and `comp_cost` {device name: microseconds}; a link has `source`, `target` and
`tensor_size_in_bit`. Other keys are ignored.

A device name becomes a device type. `mem` is held all the time: the thesis counts memory as the
static sum of (3.2). Several links from one producer with equal sizes are one tensor with several
readers, which is sent once to a device; links of unlike sizes are different outputs.
"""

from __future__ import annotations

from typing import Any

from placewire.optimizer.graph.importer import Imported
from placewire.optimizer.graph.operator_graph import GraphError, OperatorRow, build_graph
from placewire.optimizer.published.importers.foreign_rows import (
    Row,
    distinct_ids,
    edge_ends,
    number,
    rows,
    tensors_by_size,
    whole_bytes,
)


def read_thesis(document: Any, name: str = "thesis") -> Imported:
    """Raises GraphError naming the row and the key."""
    nodes = distinct_ids(rows(document, "nodes"))
    links = rows(document, "edges" if "edges" in document else "links")
    ends = [edge_ends(row, nodes, "source", "target") for row in links]
    sizes = [whole_bytes(row.number("tensor_size_in_bit") / 8) for row in links]
    tensors = tensors_by_size(ends, sizes)
    operators = [_operator(identifier, row) for identifier, row in nodes.items()]
    return Imported(build_graph(operators, tensors, name=name, notes={"format": "thesis"}))


def _operator(identifier: str, row: Row) -> OperatorRow:
    costs = row.value("comp_cost")
    if not isinstance(costs, dict) or not costs:
        raise GraphError(
            f"{row.where}: comp_cost is {costs!r}, expected microseconds by device name"
        )
    return OperatorRow(
        id=identifier,
        type=row.text("op_type") or "operator",
        seconds={
            device: number(cost, f"{row.where}: comp_cost.{device}") / 1e6
            for device, cost in costs.items()
        },
        weight_bytes=whole_bytes(row.number("mem", 0.0)),
    )
