"""Turns the placeable graph into an OperatorGraph.

One node is one operator and yields at most one tensor. Operators of type `parameter`, `buffer` and
`input` stand for values that exist before a step begins; `update` and `aten.copy_.default` write a
parameter or buffer in place, on the device that holds it. Constants are no operators: each rank
keeps a copy. These share a device (co-location): a value that is written and its writer; an
operator that yields a tuple or a Python number and those that take it, because only tensors are
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.branches import Conditional
from placewire.optimizer.capture.costs import node_cost
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.nodes import (
    MICRO_BATCH,
    MODULE,
    is_random,
    is_tuple_item,
    storage_of,
    target_name,
)
from placewire.optimizer.capture.refusals import source_of
from placewire.optimizer.capture.rewrite import PlaceableGraph
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.operator_graph import (
    BUFFER,
    PARAMETER,
    TUPLE_ITEM,
    UPDATE,
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)


@dataclass(frozen=True)
class Analysis:
    """Facts about the nodes, most about their memory.

    nodes      the operators, in captured order (a topological order); ids are node names
    layouts    by id, where the operator yields a tensor
    fresh      ids of operators that allocate the storage of their tensor
    random     ids of operators that draw from torch's generator, to their number among these; those
               that only metrics need come last, so that training draws as it does without these
    sharing    by writer id: the ids whose tensors lie in the memory that the writer overwrites
    """

    nodes: tuple[fx.Node, ...]
    layouts: Mapping[str, Layout]
    fresh: frozenset[str]
    random: Mapping[str, int]
    sharing: Mapping[str, frozenset[str]]

    @cached_property
    def by_name(self) -> Mapping[str, fx.Node]:
        return {node.name: node for node in self.nodes}


def analyse(placeable: PlaceableGraph) -> Analysis:
    """Raises CaptureError where a shape is not known before the step runs."""
    nodes = tuple(node for node in placeable.graph.nodes if node.op != "get_attr")
    layouts: dict[str, Layout] = {}
    storages: dict[str, Hashable] = {}
    sharers: dict[Hashable, list[str]] = {}  # storage -> the nodes that have it
    for node in placeable.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if not all(isinstance(s, int) for s in (*value.shape, *value.stride())):
            raise CaptureError(
                f"{source_of(node, node.name)}: operator {node.target} gives a shape that depends "
                "on values; use masks of fixed shape"
            )
        storages[node.name] = storage_of(node)
        sharers.setdefault(storages[node.name], []).append(node.name)
        layouts[node.name] = Layout.of(value)
    operators = frozenset(node.name for node in nodes)
    sharing = {
        writer: operators.intersection(sharers[storages[written]])
        for writer, written in placeable.writers.items()
    }
    return Analysis(
        nodes=nodes,
        layouts={name: layout for name, layout in layouts.items() if name in operators},
        fresh=operators.intersection(names[0] for names in sharers.values()),
        random={node.name: i for i, node in enumerate(_drawing(nodes, placeable))},
        sharing=sharing,
    )


def _drawing(nodes: Sequence[fx.Node], placeable: PlaceableGraph) -> list[fx.Node]:
    drawing = list(filter(is_random, nodes))
    if placeable.metrics and drawing:
        needed = {placeable.loss, *placeable.writers}
        for node in reversed(nodes):
            if node.name in needed:
                needed.update(source.name for source in node.all_input_nodes)
        drawing.sort(key=lambda node: node.name not in needed)
    return drawing


def operator_graph(
    placeable: PlaceableGraph,
    analysis: Analysis,
    choice: OptimizerChoice,
    name: str,
    notes: Mapping[str, Any],
    root: str,
) -> OperatorGraph:
    """Returns the graph without times. root: the prefix that the names of modules lack."""
    groups = _colocation(placeable, analysis)
    kept = frozenset(storage_of(analysis.by_name[name]) for name in placeable.outputs)
    costs = {node.name: node_cost(node, placeable, choice) for node in analysis.nodes}
    allocated = {node.name: _allocated_bytes(node, analysis) for node in analysis.nodes}
    held = {node.name for node in analysis.nodes if storage_of(node) in kept}
    rows = [
        OperatorRow(
            id=node.name,
            type=operator_type(node, placeable),
            seconds={},
            signature=_signature(node, placeable, analysis, choice),
            weight_bytes=_weight_bytes(node, placeable, choice)
            + (allocated[node.name] if node.name in held else 0),
            activation_bytes=0 if node.name in held else allocated[node.name],
            workspace_bytes=_workspace_bytes(node, placeable, choice),
            flops=costs[node.name].flops,
            traffic_bytes=costs[node.name].traffic_bytes,
            colocation=groups[node.name],
            micro_batch=node.meta.get(MICRO_BATCH),
            module=_module(node, placeable, root),
        )
        for node in analysis.nodes
    ]
    tensors = [*_data_tensors(analysis), *_order_tensors(analysis)]
    position = {node.name: i for i, node in enumerate(analysis.nodes)}
    tensors.sort(key=lambda tensor: position[tensor.producer])  # stable: data before order
    return build_graph(rows, tensors, name=name, device_types=(), notes=notes)


def operator_type(node: fx.Node, placeable: PlaceableGraph) -> str:
    if node.op == "placeholder":
        if node.name in placeable.inputs:
            return "input"
        return PARAMETER if node.name in placeable.parameters else BUFFER
    if node.op == "call_module":
        return UPDATE
    return TUPLE_ITEM if is_tuple_item(node) else target_name(node)


def _signature(
    node: fx.Node, placeable: PlaceableGraph, analysis: Analysis, choice: OptimizerChoice
) -> str:
    layout = analysis.layouts.get(node.name)
    value = f"{layout.dtype}{layout.size}{layout.stride}" if layout else "-"
    if node.op == "placeholder":
        return value
    if node.op == "call_module":
        return placeable.choice_of(choice, placeable.writers[node.name]).signature
    arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: _Name(n.name))
    inner = node.target.code if isinstance(node.target, Conditional) else ""
    return f"{value} {arguments}{inner}"


def _module(node: fx.Node, placeable: PlaceableGraph, root: str) -> str:
    """Returns the part of the model that the node belongs to; for a parameter, a buffer, and their
    writers the module that holds the value."""
    held = placeable.names.get(placeable.writers.get(node.name, node.name))
    path: str = held[0].rpartition(".")[0] if held else node.meta.get(MODULE, "")
    return f"{root}{path}" if path else ""


class _Name(str):
    """The name of an argument that is another operator; printed without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"%{self}"


def _weight_bytes(node: fx.Node, placeable: PlaceableGraph, choice: OptimizerChoice) -> int:
    """Returns the bytes of a parameter, with the optimizer state that its update holds (its
    gradient is an activation), of a buffer, or of an input, which its rank holds until the step
    ends; 0 for other nodes."""
    if (buffer := placeable.buffers.get(node.name)) is not None:
        return buffer.nbytes
    if node.name in placeable.inputs:
        return int(node.meta["val"].untyped_storage().nbytes())
    parameter = placeable.parameters.get(node.name)
    if parameter is None:
        return 0
    if node.name not in placeable.updated_by_modules:
        return parameter.nbytes
    own = placeable.choice_of(choice, node.name)
    return parameter.nbytes + own.state_bytes(parameter)


def _allocated_bytes(node: fx.Node, analysis: Analysis) -> int:
    """Returns the whole storage that the operator allocates; items of a tuple count their own. It
    is an activation, or where it is an output's memory the rank holds it until the step ends."""
    if node.op == "placeholder" or node.name not in analysis.fresh:
        return 0
    return int(node.meta["val"].untyped_storage().nbytes())


def _workspace_bytes(node: fx.Node, placeable: PlaceableGraph, choice: OptimizerChoice) -> int:
    """Returns the gradient that an update makes, clipped or unscaled, or what the larger side of a
    conditional allocates on the way; what kernels take is not known."""
    if isinstance(node.target, Conditional):
        return node.target.most_bytes_on_the_way
    if node.op != "call_module" or not choice.rescales:
        return 0
    return placeable.parameters[placeable.writers[node.name]].nbytes


def _colocation(placeable: PlaceableGraph, analysis: Analysis) -> dict[str, str | None]:
    """Groups operators that must share a device, by union-find; the key is the first operator."""
    parent = {node.name: node.name for node in analysis.nodes}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    position = {node.name: i for i, node in enumerate(analysis.nodes)}
    pairs = [*placeable.writers.items()]
    for node in analysis.nodes:
        for source in _operands(node):
            if source.name not in analysis.layouts:
                pairs.append((node.name, source.name))
    for a, b in pairs:
        first, second = sorted((root(a), root(b)), key=position.__getitem__)
        parent[second] = first
    grouped = {root(a) for pair in pairs for a in pair}
    return {name: root(name) if root(name) in grouped else None for name in parent}


def _operands(node: fx.Node) -> Iterator[fx.Node]:
    return (source for source in node.all_input_nodes if source.op != "get_attr")


def _data_tensors(analysis: Analysis) -> list[TensorRow]:
    """Returns each operator's value; it has 0 bytes where it is a tuple, a number or empty."""
    rows = []
    for node in analysis.nodes:
        if consumers := tuple(dict.fromkeys(user.name for user in node.users)):
            layout = analysis.layouts.get(node.name)
            rows.append(TensorRow(node.name, consumers, layout.wire_bytes if layout else 0))
    return rows


def _order_tensors(analysis: Analysis) -> list[TensorRow]:
    """Orders readers of a parameter or buffer before its writer by tensors of 0 bytes.

    Readers are the consumers of the value and of its views. A reader that is already an ancestor of
    the writer (a gradient depends on it) needs no such tensor. A reader on another device reads a
    copy, so that the runtime only has to complete the send of the copy before the write.
    """
    readers: dict[str, list[str]] = {}
    for writer, members in analysis.sharing.items():
        users = {user.name for name in members for user in analysis.by_name[name].users}
        readers[writer] = sorted(users - members - {writer})
    above = _ancestors_among(analysis, {name for names in readers.values() for name in names})
    later: dict[str, list[str]] = {}
    for writer, names in readers.items():
        for name in names:
            if not above(writer, name):
                later.setdefault(name, []).append(writer)
    return [TensorRow(reader, tuple(writers), 0) for reader, writers in later.items()]


def _ancestors_among(analysis: Analysis, named: set[str]) -> Callable[[str, str], bool]:
    """Returns a function of (operator, name in `named`): whether the operator depends on the name's
    result. Bit sets cover only `named`: for all operators they would grow quadratically."""
    bit = {name: 1 << position for position, name in enumerate(sorted(named))}
    reached: dict[str, int] = {}
    for node in analysis.nodes:
        above = 0
        for source in _operands(node):
            above |= reached[source.name] | bit.get(source.name, 0)
        reached[node.name] = above
    return lambda operator, name: bool(reached[operator] & bit[name])
