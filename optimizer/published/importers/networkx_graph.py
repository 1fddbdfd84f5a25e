"""Turns our graphs into networkx's and back, for those who analyse or make graphs there.

A node is an operator: its name is the id, its attributes are those of OperatorRow. networkx has
edges, not tensors: an edge carries `tensors`, a list of (output number of the producer, bytes), so
that one tensor with several consumers stays one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewire.optimizer.graph.operator_graph import (
    GraphError,
    OperatorGraph,
    OperatorRow,
    build_graph,
)
from placewire.optimizer.published.importers.foreign_rows import tensors_by_output
from placewire.optimizer.published.importers.node_link import write_node_link

if TYPE_CHECKING:
    import networkx


def to_networkx(graph: OperatorGraph) -> networkx.DiGraph[str]:
    """A DiGraph with the operators in order; `from_networkx` gives an equal graph back."""
    import networkx

    document = write_node_link(graph)
    result: networkx.DiGraph[str] = networkx.DiGraph(**document["graph"])
    for row in document["nodes"]:
        result.add_node(row["id"], **{key: value for key, value in row.items() if key != "id"})
    for edge in document["edges"]:
        tensors = [tuple(tensor) for tensor in edge["tensors"]]
        result.add_edge(edge["source"], edge["target"], tensors=tensors)
    return result


def from_networkx(source: networkx.DiGraph[Any]) -> OperatorGraph:
    """Nodes need `type` and `seconds` (by device type), edges `tensors` as above. A tensor's
    consumers come in the order of the nodes.

    Raises GraphError naming the node or edge at fault.
    """
    operators = []
    for name, attributes in source.nodes(data=True):
        try:
            operators.append(OperatorRow(id=str(name), **attributes))
        except TypeError as error:
            raise GraphError(f"node {name!r}: {error}") from error
    edges = []
    for producer, consumer, attributes in source.edges(data=True):
        where = f"edge {producer!r} -> {consumer!r}"
        if "tensors" not in attributes:
            raise GraphError(f"{where} has no 'tensors'")
        for output, size in attributes["tensors"]:
            edges.append((where, str(producer), str(consumer), int(output), int(size)))
    return build_graph(
        operators,
        tensors_by_output(edges, map(str, source.nodes)),
        name=source.graph.get("name") or "graph",
        device_types=source.graph.get("device_types"),
    )
