"""Reads and writes networkx's node-link JSON with our attributes, without networkx.

A node is an operator: `id` and the keys of a graph file's operator. A link (in `edges` in newer
networkx, in `links` in older) has `source`, `target` and `tensors`: a list of [output number of the
producer, bytes], so that one tensor with several readers stays one. `networkx.node_link_graph`
makes a graph of the document, which `networkx_graph.from_networkx` reads.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from placewire.optimizer.graph.graph_file import graph_to_json
from placewire.optimizer.graph.importer import Imported
from placewire.optimizer.graph.operator_graph import (
    GraphError,
    OperatorGraph,
    OperatorRow,
    build_graph,
)
from placewire.optimizer.graph.rows import operator_row
from placewire.optimizer.published.importers.foreign_rows import (
    Row,
    distinct_ids,
    edge_ends,
    number,
    rows,
    tensors_by_output,
)


def read_node_link(document: Any, name: str = "graph") -> Imported:
    """The name in the file takes precedence over `name`. Raises GraphError naming row and key."""
    nodes = distinct_ids(rows(document, "nodes"))
    edges = [
        (row.where, *edge_ends(row, nodes, "source", "target"), *tensor)
        for row in rows(document, "links" if "links" in document else "edges")
        for tensor in _tensors(row)
    ]
    tensors = tensors_by_output(edges, nodes)
    header = document.get("graph") or {}
    if not isinstance(header, dict):
        raise GraphError(f"graph is {header!r}, expected an object")
    graph = build_graph(
        [_operator(identifier, row) for identifier, row in nodes.items()],
        tensors,
        name=str(header.get("name") or name),
        device_types=header.get("device_types"),
    )
    return Imported(graph)


def write_node_link(graph: OperatorGraph) -> dict[str, Any]:
    """Returns the document as networkx writes it; `read_node_link` gives an equal graph back."""
    links: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for producer, identifier in enumerate(graph.ids):
        for output, tensor in enumerate(graph.output_tensors(producer).tolist()):
            for consumer in graph.tensor_consumers(tensor).tolist():
                size = int(graph.tensor_bytes[tensor])
                links[identifier, graph.ids[consumer]].append((output, size))
    return {
        "directed": True,
        "multigraph": False,
        "graph": {"name": graph.name, "device_types": list(graph.device_types)},
        "nodes": graph_to_json(graph)["operators"],
        "edges": [
            {"source": source, "target": target, "tensors": [list(row) for row in tensors]}
            for (source, target), tensors in links.items()
        ],
    }


def _operator(identifier: str, row: Row) -> OperatorRow:
    try:
        return operator_row({**row.values, "id": identifier})
    except GraphError as error:
        raise GraphError(f"{row.where}: {error}") from error


def _tensors(row: Row) -> list[tuple[int, int]]:
    found = row.value("tensors")
    if not isinstance(found, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in found
    ):
        raise GraphError(f"{row.where}: tensors is {found!r}, expected [[output, bytes], …]")
    where = f"{row.where}: tensors"
    return [(int(number(a, where)), int(number(b, where))) for a, b in found]
