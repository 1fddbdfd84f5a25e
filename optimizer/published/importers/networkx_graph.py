"""To and from networkx, for those who analyse or make graphs there.

A node is an operator: its name the id, its attributes those of OperatorRow. networkx has edges, not
tensors: an edge carries `tensors`, a list of (the producer's output number, bytes), so that one
tensor with several consumers stays one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from placewire.optimizer.graph.graph_file import graph_to_json
from placewire.optimizer.graph.operator_graph import (
    GraphError,
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)

if TYPE_CHECKING:
    import networkx


def to_networkx(graph: OperatorGraph) -> networkx.DiGraph[str]:
    """A DiGraph with the operators in order; `from_networkx` gives an equal graph back."""
    import networkx

    result: networkx.DiGraph[str] = networkx.DiGraph(
        name=graph.name, device_types=list(graph.device_types)
    )
    for row in graph_to_json(graph)["operators"]:
        attributes = {key: value for key, value in row.items() if key != "id"}
        result.add_node(row["id"], **attributes)
    for producer in range(graph.operator_count):
        for output, tensor in enumerate(graph.output_tensors(producer)):
            for consumer in graph.tensor_consumers(int(tensor)):
                ends = graph.ids[producer], graph.ids[consumer]
                if not result.has_edge(*ends):
                    result.add_edge(*ends, tensors=[])
                result.edges[ends]["tensors"].append((output, int(graph.tensor_bytes[tensor])))
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
    consumers: dict[tuple[str, int], list[str]] = defaultdict(list)
    size: dict[tuple[str, int], int] = {}
    for producer, consumer, attributes in source.edges(data=True):
        if "tensors" not in attributes:
            raise GraphError(f"edge {producer!r} -> {consumer!r} has no 'tensors'")
        for output, count in attributes["tensors"]:
            key = (str(producer), int(output))
            if size.setdefault(key, int(count)) != int(count):
                raise GraphError(f"output {output} of {producer!r} has two sizes on its edges")
            consumers[key].append(str(consumer))
    position = {str(name): k for k, name in enumerate(source.nodes)}
    tensors = [
        TensorRow(key[0], tuple(sorted(consumers[key], key=position.__getitem__)), size[key])
        for key in sorted(size, key=lambda key: (position[key[0]], key[1]))
    ]
    return build_graph(
        operators,
        tensors,
        name=source.graph.get("name") or "graph",
        device_types=source.graph.get("device_types"),
    )
