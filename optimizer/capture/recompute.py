"""Keeps activation checkpointing: what torch.utils.checkpoint wraps is computed again for the
backward pass, and its results are not held until then (Chen et al. 2016).

While a step is captured, a call of checkpoint() only notes its number on the operators inside. In
the joint graph these are then copied for the backward pass. A copy reads what went into the
checkpoint, and waits for the first gradient that comes out of it on the way back: without that it
could run at once, and nothing would be gained.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.fx import traceback
from torch.utils import checkpoint

from placewire.optimizer.capture.nodes import STORAGE, is_random, is_tuple_item, storage_of

_NUMBER = "placewire checkpoint"


def after(value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The value, once the gradient is there."""
    return value


# The costs of an operator read it: no memory is moved.
after.is_view = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def noting_checkpoints() -> Iterator[None]:
    """Inside, checkpoint() runs its function and notes on each operator in which call it is; of
    calls inside each other the innermost. Which operators a `context_fn` would keep is not
    asked."""
    calls = itertools.count()

    def noted() -> contextlib.AbstractContextManager[object]:
        return traceback.annotate({_NUMBER: next(calls)})

    def around(*_: object, **__: object) -> Iterator[None]:
        with noted():
            yield

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *arguments: Any) -> Any:
            with noted():
                return function(*arguments)

    with (
        traceback.preserve_node_meta(),
        mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", around),
        mock.patch.object(checkpoint, "CheckpointFunction", Reentrant),
    ):
        yield


def recompute(graph: fx.Graph, backward: set[fx.Node]) -> None:
    """Rewrites the joint graph in place. backward: the nodes that depend on the loss's own
    gradient."""
    behind = backward_half(graph, backward)
    place = {node: k for k, node in enumerate(graph.nodes)}
    # An operator that depends on no weight and no input, such as a mask, stays the same in every
    # step.
    varying = dependent(graph, graph.find_nodes(op="placeholder"))
    inside: dict[Hashable, list[fx.Node]] = {}
    for node in graph.nodes:
        number = checkpoint_of(node)
        if number is not None and node in varying and node not in behind:
            inside.setdefault(number, []).append(node)
    for nodes in inside.values():
        _recompute_one(graph, nodes, backward, behind, place)


def checkpoint_of(node: fx.Node) -> Hashable:
    """A mark of the checkpoint that holds the node, other than that of any other checkpoint; None
    where no checkpoint holds it."""
    number: Hashable = (node.meta.get("custom") or {}).get(_NUMBER)
    return number


def note_checkpoint(node: fx.Node, number: Hashable) -> None:
    node.meta["custom"] = {**(node.meta.get("custom") or {}), _NUMBER: number}


def backward_half(graph: fx.Graph, backward: set[fx.Node]) -> set[fx.Node]:
    """It also has operators that depend on no gradient, as the derivative of a power."""
    return backward | {
        node for node in graph.nodes if node.meta.get("partitioner_tag") == "is_backward"
    }


def dependent(graph: fx.Graph, sources: Iterable[fx.Node]) -> set[fx.Node]:
    """The sources, and all nodes that depend on any of them. Those of the loss's own gradient are
    the backward half."""
    found = set(sources)
    for node in graph.nodes:
        if node.op != "output" and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _recompute_one(
    graph: fx.Graph,
    nodes: Sequence[fx.Node],
    backward: set[fx.Node],
    behind: set[fx.Node],
    place: Mapping[fx.Node, int],
) -> None:
    """nodes: those of one checkpoint, in captured order. behind: the backward half."""
    kept = _kept(nodes, behind)
    wanted = {node for node in nodes if node not in kept and not behind.isdisjoint(node.users)}
    for node in reversed(nodes):
        if node not in kept and not wanted.isdisjoint(node.users):
            wanted.add(node)
    readers = sorted(
        {user for node in wanted for user in node.users if user in behind},
        key=place.__getitem__,
    )
    if not readers:
        return
    first = readers[0]
    gradient = _gradient_before(first, readers, backward, place)
    if gradient is None:
        return
    again: dict[fx.Node, fx.Node] = {}
    owner: dict[object, fx.Node] = {}
    for node in graph.nodes:
        owner.setdefault(storage_of(node), node)
    memory = {place for place, node in owner.items() if place is not None and node in wanted}
    with graph.inserting_before(first):
        for node in nodes:
            if node in wanted:
                begins = again.keys().isdisjoint(node.all_input_nodes)
                late = _late(graph, node, gradient) if begins else {}
                again[node] = _copied(graph, node, {**again, **late}, memory)
    for reader in readers:
        for node in list(reader.all_input_nodes):
            if node in again:
                reader.replace_input_with(node, again[node])


def _kept(nodes: Sequence[fx.Node], backward: set[fx.Node]) -> set[fx.Node]:
    """Returns the nodes that stay from the forward half: what is read behind the checkpoint, which
    lives anyway; what is drawn at random; and what takes no memory, such as a view of a weight."""
    inside = set(nodes)
    held = {
        storage_of(one) for one in nodes[0].graph.nodes if one.op in ("placeholder", "get_attr")
    }
    kept = set[fx.Node]()
    for node in nodes:
        outside = any(user not in inside and user not in backward for user in node.users)
        item = is_tuple_item(node) and node.all_input_nodes[0] in kept
        drawn = is_random(node) or (item and node.all_input_nodes[0].op == "call_function")
        place = storage_of(node)
        if outside or drawn or (place is not None and place in held):
            kept.add(node)
    # The memory of what stays lives, whichever of its views is read.
    lives = {storage_of(node) for node in kept} - {None}
    return kept | {node for node in nodes if storage_of(node) in lives}


def _gradient_before(
    first: fx.Node,
    readers: Sequence[fx.Node],
    backward: set[fx.Node],
    place: Mapping[fx.Node, int],
) -> fx.Node | None:
    """The first gradient that a reader takes, or else the last one that is made before them."""
    made = [
        node
        for node in backward
        if place[node] < place[first] and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    known = set(made)
    for reader in readers:
        for node in reader.all_input_nodes:
            if node in known:
                return node
    return max(made, key=place.__getitem__, default=None)


def _late(graph: fx.Graph, node: fx.Node, gradient: fx.Node) -> dict[fx.Node, fx.Node]:
    """Makes one of the node's inputs wait, an activation where it has one."""
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    tensors.sort(key=lambda n: n.op != "call_function")
    if not tensors:
        return {}
    source = tensors[0]
    waiting = graph.create_node("call_function", after, (source, gradient), name="after_gradient")
    waiting.meta = {key: value for key, value in source.meta.items() if key != "desc"}
    value = source.meta["val"]
    with value.fake_mode:
        waiting.meta["val"] = torch.ops.aten.alias.default(value)
    waiting.meta[STORAGE] = storage_of(source)
    return {source: waiting}


def _copied(
    graph: fx.Graph,
    node: fx.Node,
    instead: Mapping[fx.Node, fx.Node],
    memory: set[object],
) -> fx.Node:
    arguments, options = fx.node.map_arg((node.args, node.kwargs), lambda n: instead.get(n, n))
    copy = graph.create_node(node.op, node.target, arguments, options, name=f"{node.name}_again")
    copy.meta = dict(node.meta)
    if (place := storage_of(node)) is not None and place in memory:
        copy.meta[STORAGE] = (place, "again")
    return copy
