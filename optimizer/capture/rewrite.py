"""The joint graph made placeable.

After this every node is one operator: parameters, buffers and inputs are placeholders with readable
names, each trainable parameter has one `update` node, each written buffer one `copy_` node, and
constants are attributes that every rank keeps for itself. Only updates and copies write in place.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from optimizer.capture.joint import JointGraph
from optimizer.capture.layout import Layout

aten = torch.ops.aten

# A buffer that no step writes is kept by every rank that reads it, if it is at most this large: a
# copy costs memory once, a message costs time at every step.
REPLICATED_BYTES = 1 << 20


@dataclass(frozen=True)
class PlaceableGraph:
    """graph: placeholders, get_attr (constants), call_function, and call_module for updates.

    parameters and buffers: real values by node name. names: how the module that was exported calls
    each of them, by node name; several where parameters are tied. writers: node name of each update
    or copy to the node name of what it writes. inputs: node name to position.
    """

    graph: fx.Graph
    constants: Mapping[str, torch.Tensor]
    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    names: Mapping[str, tuple[str, ...]]
    inputs: Mapping[str, int]
    writers: Mapping[str, str]
    loss: str


def placeable(joint: JointGraph) -> PlaceableGraph:
    """Rewrites joint.graph in place; the result holds it."""
    graph = joint.graph
    graph.erase_node(graph.output_node())
    joint = _without_identity_views(joint)
    constants = {**joint.constants, **_constants_of_placeholders(joint)}
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        _split_convolution_backward(graph, node)
    names: dict[str, tuple[str, ...]] = {}
    parameters, writers = _parameters_and_updates(joint, names)
    buffers = _buffers_and_copies(joint, writers, names)
    inputs = {}
    for position, node in joint.inputs.items():
        if node.users:
            _rename(node, "input", str(position))
            inputs[node.name] = position
    _drop_dead(graph, keep={joint.loss.name, *writers})
    return PlaceableGraph(
        graph=graph,
        constants={k: v for k, v in constants.items() if _is_read(graph, k)},
        parameters=parameters,
        buffers=buffers,
        names=names,
        inputs=inputs,
        writers=writers,
        loss=joint.loss.name,
    )


def _without_identity_views(joint: JointGraph) -> JointGraph:
    """detach, and chains such as t(t(x)), give back what they were made from."""
    instead: dict[fx.Node, fx.Node] = {}
    for node in list(joint.graph.nodes):
        original = _identical_ancestor(node) if node.op == "call_function" else None
        if original is not None:
            node.replace_all_uses_with(original)
            instead[node] = original
    return replace(
        joint,
        loss=instead.get(joint.loss, joint.loss),
        gradients={k: instead.get(v, v) for k, v in joint.gradients.items()},
        new_buffers={k: instead.get(v, v) for k, v in joint.new_buffers.items()},
    )


def _identical_ancestor(node: fx.Node) -> fx.Node | None:
    """The furthest node up a chain of views with the same memory, shape, strides and type."""
    found, current = None, node
    while current.all_input_nodes:
        above = current.all_input_nodes[0]
        if not _share_storage(above, node):
            break
        current = above
        a, b = above.meta["val"], node.meta["val"]
        if (
            Layout.of(a) == Layout.of(b)
            and a.storage_offset() == b.storage_offset()
            and not a.is_complex()  # a conjugate is a view, too
        ):
            found = above
    return found


def _share_storage(a: fx.Node, b: fx.Node) -> bool:
    one, other = a.meta.get("val"), b.meta.get("val")
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _constants_of_placeholders(joint: JointGraph) -> dict[str, torch.Tensor]:
    """The loss's own gradient (one), and small buffers that are only read."""
    constants: dict[str, torch.Tensor] = {}
    for node in joint.tangents:
        value = node.meta["val"]
        constants[_to_constant(joint.graph, node)] = torch.ones(value.shape, dtype=value.dtype)
    for name, node in joint.buffers.items():
        value = joint.values[name]
        if name not in joint.new_buffers and value.nbytes <= REPLICATED_BYTES and node.users:
            constants[_to_constant(joint.graph, node)] = value.detach()
    return constants


def _to_constant(graph: fx.Graph, placeholder: fx.Node) -> str:
    name = f"constant_{placeholder.name}"
    with graph.inserting_after(placeholder):
        constant = graph.create_node("get_attr", name)
    constant.meta = dict(placeholder.meta)
    placeholder.replace_all_uses_with(constant)
    return name


def _split_convolution_backward(graph: fx.Graph, node: fx.Node) -> None:
    """One node for the input's gradient and one for weight and bias: they can run at once.

    Weight and bias stay together: the kernel computes the one with the other.
    """
    arguments: tuple[Any, ...] = node.args
    *rest, mask = arguments
    if not (mask[0] and (mask[1] or mask[2])):
        return
    for part in ([True, False, False], [False, mask[1], mask[2]]):
        with graph.inserting_before(node):
            split = graph.create_node("call_function", node.target, (*rest, part))
        split.meta = dict(node.meta)
        split.meta["val"] = tuple(
            value if wanted else None for value, wanted in zip(node.meta["val"], part, strict=True)
        )
        for item in list(node.users):
            position: Any = item.args[1]
            if part[position]:
                item.replace_input_with(node, split)
    graph.erase_node(node)


def _parameters_and_updates(
    joint: JointGraph, names_of: dict[str, tuple[str, ...]]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Merges tied parameters (one object under several names), and adds one update for each."""
    graph = joint.graph
    ties: dict[int, list[str]] = {}
    for name in joint.parameters:
        ties.setdefault(id(joint.values[name]), []).append(name)
    values: dict[str, torch.Tensor] = {}
    writers: dict[str, str] = {}
    for names in ties.values():
        first = joint.parameters[names[0]]
        for other in names[1:]:
            joint.parameters[other].replace_all_uses_with(first)
        gradients = list(
            dict.fromkeys(joint.gradients[name] for name in names if name in joint.gradients)
        )
        if not first.users and not gradients:
            continue
        _rename(first, "parameter", names[0])
        values[first.name] = joint.values[names[0]].detach()
        names_of[first.name] = tuple(names)
        if gradients:
            total = gradients[0]
            for gradient in gradients[1:]:
                total = _sum_of(graph, total, gradient)
            update = graph.create_node("call_module", "update", (first, total))
            update.meta["val"] = None
            _rename(update, "update", names[0])
            update.target = update.name
            writers[update.name] = first.name
    return values, writers


def _sum_of(graph: fx.Graph, a: fx.Node, b: fx.Node) -> fx.Node:
    total = graph.call_function(aten.add.Tensor, (a, b))
    with a.meta["val"].fake_mode:
        total.meta["val"] = a.meta["val"] + b.meta["val"]
    return total


def _buffers_and_copies(
    joint: JointGraph, writers: dict[str, str], names_of: dict[str, tuple[str, ...]]
) -> dict[str, torch.Tensor]:
    values: dict[str, torch.Tensor] = {}
    for name, node in joint.buffers.items():
        new = joint.new_buffers.get(name)
        if new is None and not node.users:
            continue
        _rename(node, "buffer", name)
        values[node.name] = joint.values[name].detach()
        names_of[node.name] = (name,)
        if new is not None:
            copy = joint.graph.call_function(aten.copy_.default, (node, new))
            copy.meta["val"] = None
            _rename(copy, "copy", name)
            writers[copy.name] = node.name
    return values


def _drop_dead(graph: fx.Graph, keep: set[str]) -> None:
    """Everything that neither the loss nor an update needs."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.name not in keep:
            graph.erase_node(node)


def _is_read(graph: fx.Graph, constant: str) -> bool:
    return any(node.target == constant for node in graph.find_nodes(op="get_attr"))


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _rename(node: fx.Node, kind: str, name: str) -> None:
    node._rename(f"{kind}_{_identifier(name)}")


def is_tuple_item(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem
