"""Small questions about nodes of a captured graph, and names for them."""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable

import torch
from torch import fx

from placewire.optimizer.capture.branches import Conditional
from placewire.optimizer.capture.layout import Layout

# Where a copy of a node lies, if not in the memory that was traced for the node.
STORAGE = "storage"
# Which part of the model a node is of, like `model.layers.3.attention`; of the backward pass, the
# part whose forward it belongs to.
MODULE = "module"


def storage_of(node: fx.Node) -> Hashable:
    """The same for nodes whose tensors share memory; None where the node gives no tensor."""
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
    """`aten.mm.default`; what is ours by its own name."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    name: str = getattr(node.target, "__name__", str(node.target))
    return name


def text_of(node: fx.Node) -> str:
    """Of graphs that the operator holds, what they compute."""
    return node.target.code if isinstance(node.target, Conditional) else ""


def rename(node: fx.Node, kind: str, name: str) -> None:
    node._rename(f"{kind}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}")


def in_layout_of(node: fx.Node, like: torch.Tensor) -> fx.Node:
    """The node, or a copy with the strides of `like`, made where the graph is being written."""
    value = node.meta["val"]
    if Layout.of(value).same_memory_order(Layout.of(like)):
        return node
    copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    with value.fake_mode:
        copy.meta["val"] = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype)
    return copy
