"""Adds the nodes that write: one update per parameter, one copy per buffer.

Tied parameters (one object under several names) become one parameter whose gradients are added.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

import torch
from torch import fx

from placewire.optimizer.capture.clipping import GRADIENT_NORM, add_clip_coefficient
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.nodes import in_layout_of, rename
from placewire.optimizer.capture.scaling import unscale
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.written_out import write_out

aten = torch.ops.aten


Names = dict[str, str]


def merge_ties(joint: JointGraph) -> tuple[JointGraph, dict[str, tuple[str, ...]]]:
    """Rewrites the graph so that of tied parameters only the first stays. Returns also all names of
    each parameter that stays."""
    ties: dict[int, list[str]] = {}
    for name in joint.parameters:
        ties.setdefault(id(joint.values[name]), []).append(name)
    gradients: dict[str, fx.Node] = {}
    for first, *others in ties.values():
        for other in others:
            joint.parameters[other].replace_all_uses_with(joint.parameters[first])
        parts = [joint.gradients[name] for name in (first, *others) if name in joint.gradients]
        if parts:
            gradients[first] = sum_of(joint.graph, list(dict.fromkeys(parts)))
    names = {some[0]: tuple(some) for some in ties.values()}
    kept = {name: joint.parameters[name] for name in names}
    return replace(joint, parameters=kept, gradients=gradients), names


def sum_of(graph: fx.Graph, parts: list[fx.Node]) -> fx.Node:
    """Adds the parts from the first to the last, at the graph's point of insertion."""
    total = parts[0]
    for part in parts[1:]:
        added = graph.call_function(aten.add.Tensor, (total, part))
        with total.meta["val"].fake_mode:
            added.meta["val"] = total.meta["val"] + part.meta["val"]
        total = added
    return total


def add_updates(
    joint: JointGraph,
    choice: OptimizerChoice,
    choice_of: Callable[[str], OptimizerChoice] | None = None,
) -> tuple[JointGraph, Names, Names, Names]:
    """Returns (the graph, node names to parameters, updates to the nodes that they write, metrics
    to nodes), without parameters that the step does not use. choice_of: where updates are written
    out as operators, from the name of a parameter to its choice. Raises CaptureError.

    Gradients get the strides of their parameters, as in `.grad`: the fused optimizers go through
    the memory of both, and a norm's last bit depends on the order.
    """
    graph, held, writers = joint.graph, {}, {}
    trained: dict[str, fx.Node] = {}
    for name, node in joint.parameters.items():
        if node.users or name in joint.gradients:
            rename(node, "parameter", name)
            held[node.name] = name
            if name in joint.gradients:
                trained[name] = node
    gradients: Mapping[str, fx.Node] = {
        name: in_layout_of(joint.gradients[name], node.meta["val"])
        for name, node in trained.items()
    }
    operands, own = dict[str, fx.Node](), dict[str, fx.Node]()
    if (scaling := unscale(joint, gradients, choice)) is not None:
        joint, gradients = scaling.joint, scaling.gradients
        operands |= scaling.operands
        own |= scaling.metrics
    if choice.clip_norm is not None:
        norm, operands["coefficient"] = add_clip_coefficient(gradients, choice.clip_norm)
        own[GRADIENT_NORM] = norm
    _refuse_same_names(joint.metrics, own)
    metrics = {name: node.name for name, node in (*joint.metrics.items(), *own.items())}
    if choice_of is not None:
        written = write_out(joint, gradients, operands.get("coefficient"), choice_of)
        for name, new in written.new.items():
            copy = _copy_into(trained[name], new)
            rename(copy, "update", name)
            writers[copy.name] = trained[name].name
        return written.joint, held, writers, metrics
    for name, node in trained.items():
        taken = (node, gradients[name])
        update = graph.create_node("call_module", "update", taken, {**operands})
        update.meta["val"] = None
        rename(update, "update", name)
        update.target = update.name
        writers[update.name] = node.name
    return joint, held, writers, metrics


def _refuse_same_names(metrics: Container[str], own: Mapping[str, fx.Node]) -> None:
    """own: the metrics of clipping and scaling. Raises CaptureError."""
    for name in own:
        if name in metrics:
            by = "clip_norm" if name == GRADIENT_NORM else "scaler"
            raise CaptureError(
                f"two metrics are named {name!r}: the step's own, and what is reported with "
                f"job.optimizer.{by}; give the step's another name"
            )


def add_copies(joint: JointGraph) -> tuple[Names, Names]:
    """Returns (node names to buffers, copies to the nodes that they write)."""
    held, writers = {}, {}
    for name, node in joint.buffers.items():
        new = joint.new_buffers.get(name)
        if new is None and not node.users:
            continue
        rename(node, "buffer", name)
        held[node.name] = name
        if new is not None:
            copy = _copy_into(node, new)
            rename(copy, "copy", name)
            writers[copy.name] = node.name
    return held, writers


def _copy_into(node: fx.Node, new: fx.Node) -> fx.Node:
    copy = node.graph.call_function(aten.copy_.default, (node, new))
    copy.meta["val"] = None
    return copy
