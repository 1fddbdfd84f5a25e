"""Puts small trained weights into few tensors, of which a step with shards has replicas.

A small weight on one device costs every other device that reads it two messages, for the weight and
for its gradient, and a message takes time however small it is. So the small weights lie one after
another in flat parameters, as those of FSDP's units do (Zhao et al. 2023, section 3.2), and these
have replicas, as in DDP: micro-batch m reads replica m modulo their number. No weight is sent then,
and of gradients one message for all weights of a flat parameter.

Each replica adds the gradients of all micro-batches itself, in the same order, and has an update of
its own. The replicas are thus equal to the last bit on devices of one type, and equal to the
weights of a step without them: the fused optimizers treat all elements alike but those beyond the
last whole vector of a tensor, and weights that have such elements stay by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.nodes import (
    MODULE,
    STORAGE,
    in_layout_of,
    storage_of,
    target_name,
)
from placewire.optimizer.capture.shards import VECTOR_ELEMENTS, is_plain
from placewire.optimizer.capture.updates import OptimizerChoice

aten = torch.ops.aten

# Sending more bytes takes longer, on networks of 10 Gbit/s and more, than the two messages.
MOST_WEIGHT_BYTES = 1 << 16
# More bytes in one would wait for gradients longer than a further message takes.
MOST_FLAT_BYTES = 1 << 18


@dataclass(frozen=True)
class Member:
    """A weight from element `start` on in a flat parameter.

    names: in the exported module, several where it is tied. value: before the first step."""

    names: tuple[str, ...]
    start: int
    value: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def end(self) -> int:
        return self.start + self.value.numel()


def with_small_weights(
    joint: JointGraph,
    names: Mapping[str, tuple[str, ...]],
    replicas: int,
    choice: OptimizerChoice,
) -> tuple[JointGraph, dict[str, tuple[Member, ...]]]:
    """Rewrites the graph so that small trained weights are flat parameters. Returns also their
    members. joint: of one micro-batch, without tied parameters. names: all those of parameters, of
    a shard those of its weight. replicas: how many a flat parameter will have. No weight is put
    into one where that is 1, where gradients are clipped, as their norm would be another, or where
    the optimizer needs each weight by itself.
    """
    joined = replicas > 1 and choice.clip_norm is None and choice.elementwise
    flats = _flats(joint, names, choice) if joined else {}
    if not flats:
        return joint, {}
    first_operator = next(node for node in joint.graph.nodes if node.op != "placeholder")
    parameters, gradients = dict(joint.parameters), dict(joint.gradients)
    values = dict(joint.values)
    for flat, members in flats.items():
        nodes = [parameters.pop(member.names[0]) for member in members]
        parameters[flat] = placeholder(nodes[0], members)
        whole = [gradients.pop(member.names[0]) for member in members]
        gradients[flat] = _joined(joint.graph, whole, [node.meta["val"] for node in nodes])
        values[flat] = torch.cat([member.value.reshape(-1) for member in members])
        for node, member in zip(nodes, members, strict=True):
            read_from(parameters[flat], node, member, first_operator)
            joint.graph.erase_node(node)
    return replace(joint, parameters=parameters, gradients=gradients, values=values), flats


def replica_name(flat: str, number: int) -> str:
    return f"{flat} of replica {number}"


def _flats(
    joint: JointGraph, names: Mapping[str, tuple[str, ...]], choice: OptimizerChoice
) -> dict[str, tuple[Member, ...]]:
    """By their names. Weights that are updated alike, and whose gradients come one after another,
    lie together."""
    place = {node: k for k, node in enumerate(joint.graph.nodes)}
    whole = [name for name in joint.parameters if names[name][0] == name]  # and no shard
    small = [name for name in whole if _is_small(joint, name, joint.parameters[name])]
    by_place = _viewed_by_place(joint.graph)
    small = [name for name in small if storage_of(joint.parameters[name]) not in by_place]
    small.sort(key=lambda name: place[joint.gradients[name]])
    found: list[list[Member]] = []
    open_of: dict[tuple[torch.dtype, torch.device, str], list[Member]] = {}
    for name in small:
        value = joint.values[name].detach()
        alike = value.dtype, value.device, choice.of_parameter(names[name]).signature
        flat = open_of.setdefault(alike, [])
        end = flat[-1].end if flat else 0
        if not flat or end * value.itemsize + value.nbytes > MOST_FLAT_BYTES:
            flat, end = [], 0
            found.append(flat)
            open_of[alike] = flat
        flat.append(Member(names[name], end, value))
    taken = "small weights"
    while any(name.startswith(taken) for name in joint.values):
        taken = f"more {taken}"
    return {f"{taken} {k}": tuple(members) for k, members in enumerate(found)}


def _viewed_by_place(graph: fx.Graph) -> set[Hashable]:
    """The memories of which operators name places from the memory's beginning on, where in a flat
    parameter another weight lies."""
    return {
        storage_of(one)
        for node in graph.nodes
        if node.op == "call_function" and "as_strided" in target_name(node)
        for one in (node, *node.all_input_nodes)
    }


def _is_small(joint: JointGraph, name: str, node: fx.Node) -> bool:
    value = node.meta["val"]
    return (
        name in joint.gradients
        and 0 < value.nbytes <= MOST_WEIGHT_BYTES
        and value.numel() % VECTOR_ELEMENTS == 0
        and value.is_floating_point()
        and joint.gradients[name].meta["val"].dtype == value.dtype
        and is_plain(value)
    )


def placeholder(node: fx.Node, members: Sequence[Member]) -> fx.Node:
    """Makes one of the flat parameter, before that of one of its members."""
    with node.graph.inserting_before(node):
        flat = node.graph.placeholder("small_weights")
    value = node.meta["val"]
    with value.fake_mode:
        flat.meta["val"] = torch.empty(members[-1].end, dtype=value.dtype, device=value.device)
    return flat


def read_from(flat: fx.Node, node: fx.Node, member: Member, before: fx.Node) -> None:
    """Whoever read the weight reads a view of the flat parameter instead."""
    views: list[tuple[Callable[..., torch.Tensor], tuple[Any, ...]]] = [
        (aten.slice.Tensor, (0, member.start, member.end))
    ]
    if len(member.shape) != 1:
        views.append((aten.view.default, (list(member.shape),)))
    found = flat
    for view, arguments in views:
        with node.graph.inserting_before(before):
            made = node.graph.call_function(view, (found, *arguments))
        value = found.meta["val"]
        with value.fake_mode:
            made.meta["val"] = view(value, *arguments)
        made.meta[MODULE] = node.meta.get(MODULE, "")
        found = made
    memory = storage_of(node)
    node.replace_all_uses_with(found)
    for other in node.graph.nodes:
        if other is not node and storage_of(other) == memory:
            other.meta[STORAGE] = storage_of(flat)


def _joined(
    graph: fx.Graph, gradients: Sequence[fx.Node], weights: Sequence[torch.Tensor]
) -> fx.Node:
    """The gradient of a flat parameter, at the end of the graph."""
    parts = []
    for gradient, weight in zip(gradients, weights, strict=True):
        part = in_layout_of(gradient, weight)
        if weight.dim() != 1:
            value = part.meta["val"]
            part = graph.call_function(aten.view.default, (part, [-1]))
            with value.fake_mode:
                part.meta["val"] = aten.view.default(value, [-1])
        parts.append(part)
    joined = graph.call_function(aten.cat.default, (parts,))
    with parts[0].meta["val"].fake_mode:
        joined.meta["val"] = torch.cat([part.meta["val"] for part in parts])
    return joined
