"""FullyShardedDataParallel: every device holds a part of each weight, and gathers it when needed.

As torch.distributed.fsdp does it (Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully
Sharded Data Parallel", sections 3.2 and 3.3): weights are units, one for each repeated block of the
model, and one for all others, which is gathered once. A unit is gathered before its forward half
and again before its backward half, at most two units ahead; its gradients are summed and scattered
as soon as they are there; updates begin when all of them are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import WITHOUT_SHAPING
from placewire.optimizer.peers.beside_devices import PeerGraph
from placewire.optimizer.peers.peer import PeerStep, peer_step
from placewire.optimizer.peers.replicas import PARAMETER, name_on, replicas
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


def fsdp_step(parts: StepParts, cluster: Cluster) -> PeerStep:
    """parts: of a step with a micro-batch for each device of the cluster."""
    count = parts.micro_batches
    made = replicas(parts, cluster, held=1.0 / count)
    root, blocks = _units(parts)
    done = {d: made.collective(f"all gradients@{d}", d) for d in range(count)}
    for d in range(count):
        readers = {name_on(parts, c, d) for one in parts.gradients for c in one.readers}
        made.then(done[d], sorted(readers))
    if root is not None:
        gathered = _gather(made, root, "gather", {})
        for d in range(count):
            _before(made, parts, gathered[d], [*root.forward[d], *root.backward[d]])
    forth = sorted(blocks, key=lambda unit: _first(parts, unit.forward[0]))
    _pass(made, parts, forth, forward=True)
    back = sorted(blocks, key=lambda unit: _first(parts, unit.backward[0]))
    _pass(made, parts, back, forward=False)
    for unit in [*back, *([] if root is None else [root])]:
        if unit.gradients:
            _scatter(made, parts, unit, done)
    problem, timeline = made.simulated(WITHOUT_SHAPING)
    words = f"{count} shards, {len(blocks)} units"
    return peer_step("fsdp", words, problem, timeline, beside=True)


def _first(parts: StepParts, operators: Sequence[int]) -> int:
    return min((int(parts.graph.position[i]) for i in operators), default=0)


def _units(parts: StepParts) -> tuple[_Unit | None, list[_Unit]]:
    """(the unit of what is in no repeated block, the blocks)"""
    graph = parts.graph
    unit_of: dict[int, set[str]] = {}
    size: dict[str, int] = defaultdict(int)
    for i in parts.before.tolist():
        if graph.types[i] == PARAMETER:
            unit_of[i] = {_block(graph.modules[i])}
            size[_block(graph.modules[i])] += max(
                (int(graph.tensor_bytes[e]) for e in graph.output_tensors(i)), default=0
            )
        else:  # a view of a weight, for example
            made = graph.tensor_producer[graph.input_tensors(i)].tolist()
            unit_of[i] = set().union(*(unit_of.get(j, set()) for j in made))
    halves: dict[tuple[str, bool], list[list[int]]] = {}
    for i in graph.topological_order.tolist():
        if (m := int(graph.micro_batch[i])) < 0:
            continue
        made = graph.tensor_producer[graph.input_tensors(i)].tolist()
        for name in set().union(*(unit_of.get(j, set()) for j in made)):
            empty = [list[int]() for _ in range(parts.micro_batches)]
            halves.setdefault((name, bool(parts.forward[i])), empty)[m].append(i)
    gradients: dict[str, list[Gradient]] = defaultdict(list)
    for gradient in parts.gradients:
        read = {j for c in gradient.readers for j in graph.tensor_producer[graph.input_tensors(c)]}
        names = set().union(*(unit_of.get(int(j), set()) for j in read))
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


def _block(module: str) -> str:
    """model.layers.3.attention -> model.layers.3; "" where the path has no number."""
    words = module.split(".")
    number = next((k for k, word in enumerate(words) if word.isdigit()), None)
    return "" if number is None else ".".join(words[: number + 1])


def _pass(made: PeerGraph, parts: StepParts, units: Sequence[_Unit], *, forward: bool) -> None:
    """Gathers the units in this order, each when the one before the last before it has run."""
    half = "forward" if forward else "backward"
    ran: list[dict[int, str]] = []
    for k, unit in enumerate(units):
        readers = unit.forward if forward else unit.backward
        gates = ran[k - _AHEAD] if k >= _AHEAD else {}
        if not forward and k < _AHEAD:
            gates = {d: parts.graph.ids[_last_forward(parts, d)] for d in range(len(readers))}
        gathered = _gather(made, unit, f"gather for {half}", gates)
        for d, operators in enumerate(readers):
            _before(made, parts, gathered[d], operators)
        last = {
            d: parts.graph.ids[max(operators, key=lambda i: int(parts.graph.position[i]))]
            for d, operators in enumerate(readers)
            if operators
        }
        ran.append(last)


def _last_forward(parts: StepParts, d: int) -> int:
    """The last operator of the forward half of micro-batch d."""
    graph = parts.graph
    inside = graph.topological_order
    inside = inside[(graph.micro_batch[inside] == d) & parts.forward[inside]]
    return int(inside[-1])


def _before(made: PeerGraph, parts: StepParts, gathered: str, operators: Sequence[int]) -> None:
    made.then(gathered, [parts.graph.ids[i] for i in operators])


def _gather(made: PeerGraph, unit: _Unit, what: str, gates: Mapping[int, str]) -> dict[int, str]:
    """By device, the operator at whose end the unit's weights are whole there. gates: by device,
    what must have run before it sends its part."""
    count = len(unit.forward)
    part = unit.bytes // count
    sent = {d: made.collective(f"{unit.name} {what}, part {d}@{d}", d) for d in range(count)}
    whole = {
        d: made.collective(f"{unit.name} {what}@{d}", d, holds=unit.bytes) for d in range(count)
    }
    for d in range(count):
        if d in gates:
            made.then(gates[d], [sent[d]])
        made.send(sent[d], list(whole.values()), part)
    return whole


def _scatter(made: PeerGraph, parts: StepParts, unit: _Unit, done: Mapping[int, str]) -> None:
    count = len(unit.forward)
    size = sum(gradient.bytes for gradient in unit.gradients)
    own = {d: made.collective(f"{unit.name} gradient, part {d}@{d}", d) for d in range(count)}
    for d in range(count):
        ready = made.collective(f"{unit.name} gradient@{d}", d, holds=size)
        for gradient in unit.gradients:
            made.then(parts.graph.ids[gradient.leaves[d]], [ready])
        for to in range(count):
            made.send(ready, [own[to]], size // count)
        made.then(own[d], [done[d]])
