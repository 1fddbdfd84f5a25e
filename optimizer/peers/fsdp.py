"""FullyShardedDataParallel: every device holds a part of each weight, and gathers it when needed.

As torch.distributed.fsdp does it (Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully
Sharded Data Parallel", sections 3.2 and 3.3): weights are units, one for each repeated block of the
model, and one for all others, which is gathered once. A unit is gathered before its forward half
and again before its backward half, at most two units ahead; its gradients are summed and scattered
as soon as they are there; updates begin when all of them are. A block that runs several times in a
step stays gathered from its first run to its last one.

As `fully_shard` does it (torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py), a device
copies a whole gathered unit out of the collective's memory into its weights, before it runs the
unit (foreach_all_gather_copy_out, split_with_sizes_copy), and all gradients of a unit into the
collective's memory, before they leave (foreach_reduce_scatter_copy_in, chunk_cat), each by one
kernel on the stream that computes. Weights are cut by their first dimension, where more would be
copied for others. A device copies its own part in for a gather as well, on a stream beside
(all_gather_copy_in); that takes none of its time here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.blocks import block_of
from placewire.optimizer.graph.operator_graph import PARAMETER
from placewire.optimizer.names import WITHOUT_SHAPING
from placewire.optimizer.peers.beside_devices import PeerGraph
from placewire.optimizer.peers.collectives import all_gather, reduce_scatter
from placewire.optimizer.peers.peer import PeerStep, peer_step
from placewire.optimizer.peers.replicas import (
    copy_seconds_per_byte,
    name_on,
    replicas,
    sum_seconds,
)
from placewire.optimizer.peers.step_parts import Gradient, StepParts

# How many units are gathered ahead of the one that runs.
_AHEAD = 2


@dataclass(frozen=True)
class _Unit:
    """forward, backward: by micro-batch the operators that read its weights."""

    name: str
    bytes: int
    forward: Sequence[Sequence[int]]
    backward: Sequence[Sequence[int]]
    gradients: Sequence[Gradient]


def fsdp_step(parts: StepParts, cluster: Cluster, *, only_rings: bool = False) -> PeerStep:
    """parts: of a step with a micro-batch for each device of the cluster. Parts go straight to each
    device, or round a ring where that is shorter, which it can be where servers have several
    devices; only_rings: in any case. Raises ValueError where a device cannot run its part."""
    several = any(len(server.devices) > 1 for server in cluster.servers)
    tried = (True,) if only_rings else (False, True)[: 1 + several]
    ways = [_step(parts, cluster, ring=ring) for ring in tried]
    return min(ways, key=lambda step: (not step.fits, step.step_seconds))


def _step(parts: StepParts, cluster: Cluster, *, ring: bool) -> PeerStep:
    count = parts.micro_batches
    made = replicas(parts, cluster, held=1.0 / count)
    root, blocks = _units(parts)
    done = {d: made.collective(f"all gradients@{d}", d) for d in range(count)}
    for d in range(count):
        readers = {name_on(parts, c, d) for one in parts.gradients for c in one.readers}
        made.then(done[d], sorted(readers))
    if root is not None:
        both = [[*root.forward[d], *root.backward[d]] for d in range(count)]
        _gather(made, parts, root, "gather", both, {}, ring=ring)
    forth = sorted(blocks, key=lambda unit: _first(parts, unit.forward[0]))
    _pass(made, parts, forth, forward=True, ring=ring)
    back = sorted(blocks, key=lambda unit: _first(parts, unit.backward[0]))
    _pass(made, parts, back, forward=False, ring=ring)
    for unit in [*back, *([] if root is None else [root])]:
        if unit.gradients:
            _scatter(made, parts, unit, done, ring=ring)
    problem, timeline, held = made.simulated(WITHOUT_SHAPING)
    words = f"{count} shards, {len(blocks)} units"
    return peer_step("fsdp", words, problem, timeline, held)


def _first(parts: StepParts, operators: Sequence[int]) -> int:
    return min((int(parts.graph.position[i]) for i in operators), default=0)


def _units(parts: StepParts) -> tuple[_Unit | None, list[_Unit]]:
    """(the unit of what is in no repeated block, the blocks)"""
    graph = parts.graph
    size: dict[str, int] = defaultdict(int)
    for i in parts.before.tolist():
        if graph.types[i] == PARAMETER:
            size[block_of(graph.modules[i])] += max(
                (int(graph.tensor_bytes[e]) for e in graph.output_tensors(i)), default=0
            )
    halves: dict[tuple[str, bool], list[list[int]]] = {}
    for i in graph.topological_order.tolist():
        if (m := int(graph.micro_batch[i])) < 0:
            continue
        for name in {block_of(graph.modules[w]) for w in parts.parameters_read(i)}:
            empty = [list[int]() for _ in range(parts.micro_batches)]
            halves.setdefault((name, bool(parts.forward[i])), empty)[m].append(i)
    gradients: dict[str, list[Gradient]] = defaultdict(list)
    for gradient in parts.gradients:
        read = {w for c in gradient.readers for w in parts.parameters_read(c)}
        names = {block_of(graph.modules[w]) for w in read}
        gradients[min(names, default="")].append(gradient)
    nothing: list[list[int]] = [[] for _ in range(parts.micro_batches)]
    units = {
        name: _Unit(
            name, size[name], halves.get((name, True), nothing),
            halves.get((name, False), nothing), gradients[name],
        )
        for name in {*size, *gradients}
    }  # fmt: skip
    return units.get(""), [units[name] for name in sorted(units) if name]


def _pass(
    made: PeerGraph, parts: StepParts, units: Sequence[_Unit], *, forward: bool, ring: bool
) -> None:
    """Gathers the units in this order, each when the one before the last before it has run."""
    half = "forward" if forward else "backward"
    ids = parts.graph.ids
    for k, unit in enumerate(units):
        readers = unit.forward if forward else unit.backward
        gates: dict[int, str] = {}
        for d, operators in enumerate(readers):
            if k >= _AHEAD:
                before = units[k - _AHEAD].forward if forward else units[k - _AHEAD].backward
                ran = _last_before(parts, before[d], operators)
                gates |= {} if ran is None else {d: ids[ran]}
            elif not forward:
                gates[d] = ids[_last_forward(parts, d)]
        _gather(made, parts, unit, f"gather for {half}", readers, gates, ring=ring)


def _last_before(parts: StepParts, operators: Sequence[int], later: Sequence[int]) -> int | None:
    """The last of the operators that comes before all of the later ones: a block may run again."""
    position, first = parts.graph.position, _first(parts, later)
    earlier = [i for i in operators if position[i] < first]
    return max(earlier, key=lambda i: int(position[i]), default=None)


def _last_forward(parts: StepParts, d: int) -> int:
    """The last operator of the forward half of micro-batch d. Raises ValueError where there is
    none."""
    graph = parts.graph
    inside = graph.topological_order
    inside = inside[(graph.micro_batch[inside] == d) & parts.forward[inside]]
    if not len(inside):
        raise ValueError(f"what the graph calls its loss needs nothing of micro-batch {d + 1}")
    return int(inside[-1])


def _gather(
    made: PeerGraph,
    parts: StepParts,
    unit: _Unit,
    what: str,
    readers: Sequence[Sequence[int]],
    gates: Mapping[int, str],
    *,
    ring: bool,
) -> None:
    """readers: by device, the operators that wait for the whole unit. gates: by device, what must
    have run before it sends its part."""
    count, ids = len(readers), parts.graph.ids
    copied = unit.bytes * copy_seconds_per_byte(parts, made.cluster)
    sent = {d: made.collective(f"{unit.name} {what}, part {d}@{d}", d) for d in range(count)}
    whole = {d: made.collective(f"{unit.name} {what}@{d}", d) for d in range(count)}
    for d in range(count):
        if d in gates:
            made.then(gates[d], [sent[d]])
        waiting = [ids[i] for i in readers[d]]
        made.then(whole[d], waiting)
        if waiting:
            moved = 2 * unit.bytes * (1 - 1 / count)
            made.call(ids[parts.earliest(readers[d])], moved)
            made.occupy(ids[parts.earliest(readers[d])], float(copied[d]))
        made.hold(d, unit.bytes, sent[d], [whole[d], *waiting])
    all_gather(made, f"{unit.name} {what}", sent, unit.bytes, whole, ring=ring)


def _scatter(
    made: PeerGraph, parts: StepParts, unit: _Unit, done: Mapping[int, str], *, ring: bool
) -> None:
    graph, count = parts.graph, len(unit.forward)
    size = sum(gradient.bytes for gradient in unit.gradients)
    moved, sums = 2 * size * (1 - 1 / count), sum_seconds(parts, made.cluster, unit.gradients)
    copied = size * copy_seconds_per_byte(parts, made.cluster)
    own = {d: made.collective(f"{unit.name} gradient, part {d}@{d}", d) for d in range(count)}
    ready = {d: made.collective(f"{unit.name} gradient@{d}", d) for d in range(count)}
    for d in range(count):
        leaves = [gradient.leaves[d] for gradient in unit.gradients]
        for i in leaves:
            made.then(graph.ids[i], [ready[d]])
        made.then(own[d], [done[d]])
        made.call(graph.ids[parts.latest(leaves)], moved, float(sums[d]))
        made.occupy(graph.ids[parts.latest(leaves)], float(copied[d]))
        made.hold(d, size, graph.ids[parts.earliest(leaves)], own.values())
        made.hold(d, size // count, own[d])
    reduce_scatter(made, f"{unit.name} gradient", ready, size, own, ring=ring)
