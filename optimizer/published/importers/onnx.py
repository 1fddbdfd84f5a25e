"""Reads ONNX models (onnx.ai), the operators of one inference, with the package `onnx`.

A node is an operator, whose weights are the initialisers and the results of Constant nodes that it
reads. A weight of several nodes is an operator of type `parameter`, whose tensor is sent to them,
unless it is small: then each has a copy. A graph input is an operator of type `input`. A node with
bodies (If, Loop, Scan) is one operator, which reads what its bodies read of the outer graph.

An ONNX file has no times. Its operators get flops and traffic_bytes, from which
`optimizer profile GRAPH --device NAME` models the times. Sizes follow from shapes: those that the
file does not state are inferred, and a dimension that has only a name needs a size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.importer import Imported
from placewire.optimizer.graph.operator_graph import GraphError, OperatorRow, TensorRow, build_graph
from placewire.optimizer.published.importers.onnx_costs import VIEWS, bodies, node_cost
from placewire.optimizer.published.importers.onnx_model import (
    OWN_DOMAINS,
    SMALL_BYTES,
    Scope,
    read_model,
)


def read_onnx(
    data: bytes,
    name: str = "onnx",
    folder: Path = Path(),
    dimensions: Mapping[str, int] | None = None,
) -> Imported:
    """folder: where the model's external data lie; dimensions: sizes by name. Raises GraphError
    without the package, for data that are no model, and naming the node or value at fault."""
    model = read_model(data, folder, dimensions or {})
    # No formula is known for operators of other domains, only the sizes that the file states.
    without_formula = {_type(n) for n in model.main.nodes if n.domain not in OWN_DOMAINS}
    notes = {
        "format": "onnx",
        "producer": model.producer,
        "opset": model.opset,
        "dimensions": dict(dimensions or {}),
        "counted_per_element": sorted(without_formula),
    }
    reading = _Reading(model.main)
    graph = build_graph(reading.operators(), list(reading.tensors()), name=name, notes=notes)
    return Imported(graph)


class _Reading:
    """Makes rows of one model."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._nodes, same = _without_copies(scope)
        self._where = [f"node {_called(node)!r} ({_type(node)})" for node in self._nodes]
        self._reads = [
            list(dict.fromkeys(same.get(name, name) for name in _read_by(node, scope)))
            for node in self._nodes
        ]
        self._readers: dict[str, list[int]] = defaultdict(list)
        for k, names in enumerate(self._reads):
            for name in names:
                self._readers[name].append(k)
        self._inputs = [name for name in scope.inputs if name in self._readers]
        several = [name for name in scope.constants if len(self._readers[name]) > 1]
        self._shared = [n for n in several if scope.value(n, "weights").bytes > SMALL_BYTES]
        taken = {*self._inputs, *self._shared}
        self._ids = [_distinct(node, taken) for node in self._nodes]

    def operators(self) -> list[OperatorRow]:
        first = [
            *(self._standing(name, "input") for name in self._inputs),
            *(self._standing(name, "parameter") for name in self._shared),
        ]
        self._check()
        own = set(self._scope.constants) - set(self._shared)
        return [*first, *(self._operator(k, own) for k in range(len(self._nodes)))]

    def tensors(self) -> Iterator[TensorRow]:
        given = [(name, name, f"input {name!r}") for name in (*self._inputs, *self._shared)]
        for k, node in enumerate(self._nodes):
            given += [(name, self._ids[k], self._where[k]) for name in node.output if name]
        for name, producer, where in given:
            if readers := self._readers[name]:
                size = self._scope.value(name, where).bytes
                yield TensorRow(producer, tuple(self._ids[k] for k in readers), size)

    def _standing(self, name: str, kind: str) -> OperatorRow:
        """The operator of an input or of a shared weight."""
        value = self._scope.value(name, kind)
        return OperatorRow(
            id=name,
            type=kind,
            seconds={},
            signature=f"{value.type}{list(value.shape)}",
            weight_bytes=value.bytes,
        )

    def _operator(self, k: int, own: set[str]) -> OperatorRow:
        node, where = self._nodes[k], self._where[k]
        weights = [name for name in self._reads[k] if name in own]
        outputs = [self._scope.value(name, where) for name in node.output if name]
        views = node.op_type in VIEWS and node.domain in OWN_DOMAINS
        cost = node_cost(node, self._scope, where)
        return OperatorRow(
            id=self._ids[k],
            type=_type(node),
            seconds={},
            signature=" ".join(f"{value.type}{list(value.shape)}" for value in outputs),
            weight_bytes=sum(self._scope.value(name, where).bytes for name in weights)
            + _weights_of_bodies(node, self._scope, where),
            activation_bytes=0 if views else sum(value.bytes for value in outputs),
            flops=cost.flops,
            traffic_bytes=cost.traffic_bytes,
        )

    def _check(self) -> None:
        """Raises GraphError for an unknown operator, and for a value that none, or two, give."""
        from onnx import defs

        for node, where in zip(self._nodes, self._where, strict=True):
            if node.domain in OWN_DOMAINS and not defs.has(node.op_type):
                raise GraphError(f"{where}: ONNX has no such operator")
        given = dict.fromkeys((*self._scope.inputs, *self._scope.constants), "the graph")
        for k, node in enumerate(self._nodes):
            for name in filter(None, node.output):
                if name in given:
                    raise GraphError(f"{self._where[k]}: {name!r} is also given by {given[name]}")
                given[name] = self._where[k]
        for k, names in enumerate(self._reads):
            for name in names:
                if name not in given:
                    raise GraphError(f"{self._where[k]}: reads {name!r}, which nothing gives")


def _without_copies(scope: Scope) -> tuple[list[Any], dict[str, str]]:
    """Returns the nodes without the Identity nodes by which exporters tie equal weights, and for
    each result of such a node the weight that it is."""
    constants = set(scope.constants)
    same: dict[str, str] = {}
    nodes = []
    for node in scope.nodes:
        given = [same.get(name, name) for name in node.input]
        copies = node.op_type == "Identity" and node.domain in OWN_DOMAINS
        if copies and len(given) == 1 and given[0] in constants:
            same[node.output[0]] = given[0]
        else:
            nodes.append(node)
    return nodes, same


def _read_by(node: Any, scope: Scope) -> Iterator[str]:
    """The values of the node's own graph that it or its bodies read, with repetitions."""
    yield from filter(None, node.input)
    for body in bodies(node, scope):
        inner = {*body.inputs, *body.constants, *(o for n in body.nodes for o in n.output)}
        read = [o.name for o in body.graph.output]
        read += [name for within in body.nodes for name in _read_by(within, body)]
        yield from (name for name in read if name not in inner)


def _weights_of_bodies(node: Any, scope: Scope, where: str) -> int:
    total = 0
    for body in bodies(node, scope):
        total += sum(body.value(name, where).bytes for name in body.constants)
        total += sum(_weights_of_bodies(inner, body, where) for inner in body.nodes)
    return total


def _distinct(node: Any, taken: set[str]) -> str:
    """The node's name, or that of its first result, with a number where the name is taken."""
    name = base = _called(node) or node.op_type
    number = 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def _called(node: Any) -> str:
    name: str = node.name or next(filter(None, node.output), "")
    return name


def _type(node: Any) -> str:
    return node.op_type if node.domain in OWN_DOMAINS else f"{node.domain}.{node.op_type}"
