"""Finds views of what all micro-batches share, which each micro-batch makes for itself.

A value and a view of it, such as a weight and its transpose, are two tensors of one memory. Each
device that reads both would be sent the same bytes twice, as what is sent is a tensor and not
memory. A view costs nothing where its memory is, so that it is better made where it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable

import torch
from torch import fx

from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.nodes import storage_of, tensors_in

# It names places in memory, which a value that was sent does not have.
_OF_PLACES = torch.ops.aten.as_strided.default


def views_to_repeat(common: Collection[fx.Node]) -> frozenset[fx.Node]:
    """common: the nodes that all micro-batches share, in captured order. Returns those that only
    view memory of another of them, in one step or in several.

    Left out are the views of memory of which micro-batches read fewer bytes, over all its tensors,
    than the value has that they view: the first rows of a table, for example, are sent as they are.
    So are the views of memory that as_strided views, too.
    """
    first: dict[Hashable, fx.Node] = {}
    views: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    read: dict[fx.Node, int] = defaultdict(int)
    for node in common:
        if (place := _memory_of(node)) is None:
            continue
        whole = first.setdefault(place, node)
        if whole is not node:
            views[whole].append(node)
        if any(user not in common for user in node.users):
            read[whole] += _sent_bytes(node)
    return frozenset(
        view
        for whole, found in views.items()
        if isinstance(whole.meta["val"], torch.Tensor)  # and no tuple that an operator computes
        and _sent_bytes(whole) <= read[whole]
        and all(one.target is not _OF_PLACES for one in found)
        for view in found
    )


def _memory_of(node: fx.Node) -> Hashable:
    """The memory that all of the node's tensors share; None where there is no such memory."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return storage_of(node)
    places = {value.untyped_storage()._cdata for value in tensors_in(node.meta.get("val"))}
    return places.pop() if len(places) == 1 else None


def _sent_bytes(node: fx.Node) -> int:
    """What a device is sent that reads the node: of a constant nothing, as each rank keeps it, and
    of a tuple nothing, as its items are sent."""
    value = node.meta.get("val")
    if node.op == "get_attr" or not isinstance(value, torch.Tensor):
        return 0
    return Layout.of(value).wire_bytes
