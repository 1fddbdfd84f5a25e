"""Cuts large weights by rows, into shards that each have an update, and so a device, of their own.

A whole weight on one device makes that device's NICs the bottleneck, where several devices read the
weight and send it their gradients. Of shards on all devices, each sends and receives only its rows,
as in ZeRO (Rajbhandari et al. 2020, section 5.3) and FSDP.

Whoever reads the weight joins its shards first, in each micro-batch anew, so that a device that
runs a whole micro-batch gets the rows of each shard once. The gradient of a shard is the gradient's
rows. All results are those of the whole weight, to the last bit: the fused optimizers treat all
elements alike but those beyond the last whole vector of a tensor, and only the last shard has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import fx

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.nodes import MODULE, PER_MICRO_BATCH
from placewire.optimizer.capture.updates import OptimizerChoice

aten = torch.ops.aten

# A shard of fewer bytes, or of a smaller part of all trained weights, would cost more messages and
# copies than it saves: smaller weights are spread well enough if each is whole.
LEAST_SHARD_BYTES, LEAST_SHARD_PART = 1 << 20, 1 / 64
# The widest vectors of today's processors have 16 float32, and loops over them are unrolled by 4.
VECTOR_ELEMENTS = 64


@dataclass(frozen=True)
class Shard:
    """Rows start to end, exclusive, of the parameter that the module calls `name`, which has
    `rows` of them."""

    name: str
    start: int
    end: int
    rows: int

    @property
    def suffix(self) -> str:
        """What a checkpoint adds to the names of the weight and of its optimizer state."""
        return f"[{self.start}:{self.end}]"


def with_shards(
    joint: JointGraph, count: int, choice: OptimizerChoice
) -> tuple[JointGraph, dict[str, Shard]]:
    """Rewrites the graph so that each large trained parameter is `count` parameters, or fewer where
    these would be small. Returns also the shard by the new parameters' names. joint: without tied
    parameters. Raises CaptureError where gradients are clipped, as their norm would be another, and
    where the optimizer needs whole weights.
    """
    trained = {k: node.meta["val"] for k, node in joint.parameters.items() if k in joint.gradients}
    total = sum(value.nbytes for value in trained.values())
    least = max(LEAST_SHARD_BYTES, int(LEAST_SHARD_PART * total))
    cuts = {k: rows for k, value in trained.items() if len(rows := _cuts(value, count, least)) > 2}
    for name in [*cuts]:
        # What a checkpoint calls a shard must be no other value's name.
        if any(f"{name}{shard.suffix}" in joint.values for shard in _shards(name, cuts[name])):
            del cuts[name]
    if not cuts:
        return joint, {}
    if choice.clip_norm is not None:
        raise CaptureError(
            f"job.shards {count} cuts {next(iter(cuts))}, and job.optimizer.clip_norm needs the "
            "norm of each whole gradient; leave one of them out"
        )
    if not choice.elementwise:
        raise CaptureError(
            f"job.shards {count} cuts {next(iter(cuts))}, and {choice.name} updates a weight as a "
            "whole: of its parts it makes other values; give job.shards 1"
        )
    first_operator = next(node for node in joint.graph.nodes if node.op != "placeholder")
    shards: dict[str, Shard] = {}
    parameters, values, gradients = dict[str, fx.Node](), dict(joint.values), dict(joint.gradients)
    for name, node in joint.parameters.items():
        if name not in cuts:
            parameters[name] = node
            continue
        parts = {f"{name}.rows_{p.start}": p for p in _shards(name, cuts[name])}
        shards |= parts
        parameters |= placeholders(node, parts)
        join(node, [parameters[part] for part in parts], first_operator)
        whole = gradients.pop(name)
        gradients |= _rows_of(whole, parts)
        held = joint.values[name].detach()
        values |= {part: held[shard.start : shard.end] for part, shard in parts.items()}
        joint.graph.erase_node(node)
    found = replace(joint, parameters=parameters, values=values, gradients=gradients)
    return found, shards


def _cuts(value: torch.Tensor, count: int, least: int) -> list[int]:
    """The rows where shards of at least `least` bytes begin, then the number of rows; [0, rows] for
    one that stays whole."""
    rows = value.shape[0] if value.dim() else 1
    whole = [0, rows]
    if not value.is_floating_point() or not value.numel() or not is_plain(value):
        return whole
    step = VECTOR_ELEMENTS // math.gcd(VECTOR_ELEMENTS, value.numel() // rows)
    count = min(count, value.nbytes // least, rows // step)
    if count < 2:
        return whole
    return [round(k * rows / count / step) * step for k in range(count)] + [rows]


def is_plain(value: torch.Tensor) -> bool:
    """Whether joined rows have the tensor's strides, those of dimensions of extent 1 included."""
    stride = 1
    for extent, found in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if found != stride:
            return False
        stride *= extent
    return True


def _shards(name: str, cuts: list[int]) -> Iterator[Shard]:
    for start, end in pairwise(cuts):
        yield Shard(name, start, end, cuts[-1])


def placeholders(node: fx.Node, parts: Mapping[str, Shard]) -> dict[str, fx.Node]:
    """Makes one for each shard of the weight, by the names of the shards."""
    made: dict[str, fx.Node] = {}
    for name, shard in parts.items():
        with node.graph.inserting_before(node):
            made[name] = node.graph.placeholder(f"shard_{node.name}_{shard.start}")
        value = node.meta["val"]
        with value.fake_mode:
            like = value.detach()[shard.start : shard.end]
            made[name].meta["val"] = torch.empty_like(like)
        made[name].meta[MODULE] = node.meta.get(MODULE, "")
    return made


def join(node: fx.Node, parts: list[fx.Node], before: fx.Node) -> None:
    """Whoever read the weight reads its joined shards instead."""
    with node.graph.inserting_before(before):
        whole = node.graph.call_function(aten.cat.default, (parts,))
    # With the weight's own tensor, whose memory views of the weight share.
    whole.meta = {**node.meta, PER_MICRO_BATCH: True}
    whole.meta.pop("desc", None)
    node.replace_all_uses_with(whole)


def _rows_of(gradient: fx.Node, parts: Mapping[str, Shard]) -> dict[str, fx.Node]:
    """The rows of the gradient that each shard's update reads, at the end of the graph."""
    rows: dict[str, fx.Node] = {}
    for name, shard in parts.items():
        bounds = (0, shard.start, shard.end)
        rows[name] = gradient.graph.call_function(aten.slice.Tensor, (gradient, *bounds))
        value = gradient.meta["val"]
        with value.fake_mode:
            rows[name].meta["val"] = aten.slice.Tensor(value, *bounds)
        rows[name].meta[MODULE] = gradient.meta.get(MODULE, "")
    return rows
