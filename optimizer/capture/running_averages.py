"""Moves the averages of batch norms once in a step, so that no micro-batch waits for another.

A batch norm in training normalises by its batch alone, and moves its running averages on the side.
As one operator it would hand these from each micro-batch to the next. Here it gives its batch's
mean and variance, and one operator for each average moves it by those of all micro-batches, in
their order.

On a processor the averages equal those of PyTorch to the last bit, as its kernels round on x86
with AVX2 or AVX512 (torch 2.13); elsewhere, and on CUDA, they may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.nodes import MODULE

aten = torch.ops.aten

_BATCH_NORM = aten._native_batch_norm_legit_functional.default
# Arguments of the operator: its input, weight, running averages, whether it trains, momentum.
_INPUT, _WEIGHT, _AVERAGES, _TRAINS, _MOMENTUM = 0, 1, (3, 4), 5, 6
# Its results after the normalised input and the two statistics that the backward pass reads.
_NEW_AVERAGES = (3, 4)
# Its backward pass is given the new averages, and whether it trained: then it does not read them.
_BACKWARD = aten.native_batch_norm_backward.default
_BACKWARD_TRAINS = 7
# The operator gives its batch's statistics themselves as new averages.
_WHOLE_MOMENTUM = 1.0


def running_average(
    old: torch.Tensor, found: Sequence[torch.Tensor], momentum: float, kept: float
) -> torch.Tensor:
    """Returns the average after the statistics in `found`, float[channels] each. kept: 1 - momentum
    in the type of the average. Each product is rounded, and each sum."""
    new = old * kept
    for number, one in enumerate(found):
        if number:
            new.mul_(kept)
        new.add_(one * momentum)
    return new


def running_average_fused(
    old: torch.Tensor, found: Sequence[torch.Tensor], momentum: float, kept: float
) -> torch.Tensor:
    """As running_average(), but the sum with the second product is rounded once."""
    new = old * kept
    for number, one in enumerate(found):
        if number:
            new.mul_(kept)
        new.add_(one, alpha=momentum)
    return new


def running_average_interpolated(
    old: torch.Tensor, found: Sequence[torch.Tensor], momentum: float, kept: float
) -> torch.Tensor:
    """As running_average() but for rounding, by one kernel for each statistic."""
    for one in found:
        old = torch.lerp(old, one, momentum)
    return old


MOVES = (running_average, running_average_fused, running_average_interpolated)


def with_own_running_averages(joint: JointGraph) -> JointGraph:
    """Rewrites the graph so that each new average is one of MOVES, of the old average and a list of
    one statistic. joint: of one micro-batch. A batch norm stays as it is where anything else reads
    its averages, where it has no weight of their type, where they are no float32 or float64, and
    where its input is neither contiguous nor has its channels last."""
    names = {node: name for name, node in joint.buffers.items()}
    new_buffers = dict(joint.new_buffers)
    for norm in joint.graph.find_nodes(op="call_function", target=_BATCH_NORM):
        if not _is_plain(norm):
            continue
        pair = [names.get(norm.args[k], "") for k in _AVERAGES]
        items = [new_buffers.get(name) for name in pair]
        alike = _reading_alike(norm)
        if not alike or None in items or items != [_item(norm, k) for k in _NEW_AVERAGES]:
            continue
        for name, item, is_variance in zip(pair, items, (False, True), strict=True):
            new_buffers[name] = _moved(norm, joint.buffers[name], item, is_variance)
        for one in alike:
            _give_statistics(one)
    return replace(joint, new_buffers=new_buffers)


def _is_plain(norm: fx.Node) -> bool:
    """Whether its averages move, and by a rule that MOVES have."""
    given, weight, *averages = (_value(norm.args[k]) for k in (_INPUT, _WEIGHT, *_AVERAGES))
    return (
        norm.args[_TRAINS] is True
        and given is not None
        and _is_dense(given)
        and weight is not None
        and weight.dtype in (torch.float32, torch.float64)
        and all(one is not None and one.dtype == weight.dtype for one in averages)
    )


def _is_dense(given: torch.Tensor) -> bool:
    """Other layouts have a kernel that rounds as no operator does."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(given.dim())
    return given.is_contiguous() or (last is not None and given.is_contiguous(memory_format=last))


def _value(argument: object) -> torch.Tensor | None:
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _item(norm: fx.Node, position: int) -> fx.Node | None:
    """The node that takes this result."""
    found = [one for one in norm.users if one.args[1] == position]
    return found[0] if len(found) == 1 else None


def _reading_alike(norm: fx.Node) -> list[fx.Node]:
    """The batch norms that read the averages of this one: itself, and a checkpoint's repetition of
    it. Empty where other operators read the averages, old or new."""
    averages: list[Any] = [norm.args[k] for k in _AVERAGES]
    readers = {user for one in averages for user in one.users}
    for one in readers:
        if one.target is not _BATCH_NORM or one.args[_WEIGHT:] != norm.args[_WEIGHT:]:
            return []
        if any(user not in _backward_of(one) for item in _new_averages(one) for user in item.users):
            return []
    return sorted(readers)


def _new_averages(norm: fx.Node) -> list[fx.Node]:
    return [item for k in _NEW_AVERAGES if (item := _item(norm, k)) is not None]


def _backward_of(norm: fx.Node) -> set[fx.Node]:
    """The backward passes that are given new averages of this batch norm, and do not read them."""
    users = {user for item in _new_averages(norm) for user in item.users}
    return {
        user
        for user in users
        if user.target is _BACKWARD
        and user.args[_BACKWARD_TRAINS] is True
        and not set(_new_averages(norm)).intersection(
            one for k, one in enumerate(user.args) if k not in _AVERAGES
        )
    }


def _moved(
    norm: fx.Node, average: fx.Node, statistic: fx.Node | None, is_variance: bool
) -> fx.Node:
    """Returns the new average, right behind the statistic."""
    assert statistic is not None
    given, value = _value(norm.args[_INPUT]), average.meta["val"]
    assert given is not None
    if value.device.type != "cpu":
        move = running_average_interpolated
    elif given.dtype == value.dtype == torch.float32 and is_variance:
        move = running_average_fused
    else:
        move = running_average
    momentum: Any = norm.args[_MOMENTUM]
    kept = 1.0 - float(torch.tensor(momentum, dtype=value.dtype))
    with norm.graph.inserting_after(statistic):
        arguments = (average, [statistic], momentum, kept)
        moved = norm.graph.call_function(move, arguments)
    with value.fake_mode:
        moved.meta["val"] = torch.empty_like(value)
    moved.meta[MODULE] = norm.meta.get(MODULE, "")
    return moved


def _give_statistics(norm: fx.Node) -> None:
    """With this momentum nothing of the old averages is left, so that any tensor of their shape may
    be given for them, and so it is with the backward pass. Both operators have the weight already.
    """
    weight = norm.args[_WEIGHT]
    for one in (norm, *_backward_of(norm)):
        arguments = list(one.args)
        for k in _AVERAGES:
            arguments[k] = weight
        if one is norm:
            arguments[_MOMENTUM] = _WHOLE_MOMENTUM
        one.args = tuple(arguments)
