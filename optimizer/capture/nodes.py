"""Helpers for the nodes of a captured graph: memory, randomness, names, layouts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.layout import Layout

# Key in node.meta of the memory of a copied node, where it is not the memory that was traced.
STORAGE = "storage"
# Key in node.meta of the part of the model that a node belongs to, like `model.layers.3.attention`;
# a node of the backward pass belongs to the same part as its forward.
MODULE = "module"
# Key in node.meta of the number of the micro-batch that a node works for, from 0; without it where
# it serves several.
MICRO_BATCH = "micro-batch"
# Key in node.meta of an operator that is repeated in each micro-batch, though none of its inputs
# differs.
PER_MICRO_BATCH = "per micro-batch"


def storage_of(node: fx.Node) -> Hashable:
    """Returns the same key for nodes whose tensors share memory; None for one without a tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    place: Hashable = node.meta.get(STORAGE, value.untyped_storage()._cdata)
    return place


def is_random(node: fx.Node) -> bool:
    """Whether it draws from torch's generator."""
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags


def is_tuple_item(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def target_name(node: fx.Node) -> str:
    """Returns a name like `aten.mm.default`, or the name of a function of this package."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    name: str = getattr(node.target, "__name__", str(node.target))
    return name


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yields the value if it is a tensor, or the tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def call(
    target: Callable[..., Any], arguments: tuple[Any, ...], name: str, **options: Any
) -> fx.Node:
    """Makes a node of that name, at the point of insertion. arguments: with one node at least.
    options: those that the target takes by name."""
    operands: list[fx.Node] = []
    fx.node.map_arg(arguments, operands.append)
    graph, mode = operands[0].graph, operands[0].meta["val"].fake_mode
    node = graph.create_node(
        "call_function", target, arguments, options, name=name.replace(".", "_")
    )
    values: Any = fx.node.map_arg(arguments, lambda operand: operand.meta["val"])
    with mode:
        node.meta["val"] = target(*values, **options)
    return node


def rename(node: fx.Node, kind: str, name: str) -> None:
    node._rename(f"{kind}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}")


def in_layout_of(node: fx.Node, like: torch.Tensor) -> fx.Node:
    """Returns the node, or a copy at the point of insertion if it lacks the strides of `like`."""
    value = node.meta["val"]
    if Layout.of(value).same_memory_order(Layout.of(like)):
        return node
    copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    with value.fake_mode:
        copy.meta["val"] = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype)
    return copy
