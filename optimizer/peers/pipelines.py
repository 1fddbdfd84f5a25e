"""Pipelines: each device has a piece of the layers, and micro-batches pass through all of them.

As torch.distributed.pipelining schedules them: GPipe runs all forward halves, then all backward
ones (Huang et al. 2019, section 2.3); 1F1B alternates as soon as its pipeline is full (Narayanan et
al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.2); interleaved 1F1B has
several pieces of layers on each device (Narayanan et al. 2021, "Efficient Large-Scale Language
Model Training on GPU Clusters", section 2.2.2). Pieces are of about equal work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.pieces import Pieces
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import WITHOUT_SHAPING
from placewire.optimizer.peers.local_sums import Staged, with_local_sums
from placewire.optimizer.peers.peer import PeerStep, peer_step
from placewire.optimizer.peers.stages import Stages
from placewire.optimizer.peers.step_parts import StepParts, step_parts
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate

_PIECES_OF_A_DEVICE = (2, 3, 4)
# (forward?, piece of the device's own, micro-batch)
Slot = tuple[bool, int, int]


@dataclass(frozen=True)
class Schedule:
    """stages: devices. pieces: of the layers that each device has. order: for each device which
    half of which micro-batch of which of its pieces comes when."""

    name: str
    stages: int
    pieces: int
    order: tuple[tuple[Slot, ...], ...]


def pipeline_steps(graph: OperatorGraph, cluster: Cluster) -> list[PeerStep]:
    """Of every schedule that the step's micro-batches can use; graph: with at least two. Raises
    ValueError as step_parts() and Stages() do."""
    problem = Problem(graph, cluster, sharing=WITHOUT_SHAPING)
    pieces, parts = Pieces(problem), step_parts(graph)
    stages, found = Stages(problem, parts), []
    for schedule in schedules(len(cluster.devices), pieces.micro_batches):
        for stage in stages.of(schedule.stages * schedule.pieces):
            step = _step(problem, pieces, parts, schedule, stage)
            if step is not None:
                found.append(step)
    return found


def schedules(devices: int, micro_batches: int) -> Iterator[Schedule]:
    if devices < 2:
        return
    yield Schedule("gpipe", devices, 1, tuple(_gpipe(micro_batches) for _ in range(devices)))
    if micro_batches >= devices:  # torch refuses fewer
        one = tuple(_alternating(devices, k, micro_batches, 1) for k in range(devices))
        yield Schedule("1f1b", devices, 1, one)
    if micro_batches % devices == 0:
        for pieces in _PIECES_OF_A_DEVICE:
            rows = tuple(_alternating(devices, k, micro_batches, pieces) for k in range(devices))
            yield Schedule("interleaved-1f1b", devices, pieces, rows)


def _gpipe(micro_batches: int) -> tuple[Slot, ...]:
    return tuple((half, 0, m) for half in (True, False) for m in range(micro_batches))


def _alternating(devices: int, k: int, micro_batches: int, pieces: int) -> tuple[Slot, ...]:
    """The slots of device k: forward halves until the pipeline is full, then one of each in turns.
    With several pieces, micro-batches go through them in groups of as many as there are devices."""
    total = micro_batches * pieces
    if pieces == 1:
        ahead = min(devices - k - 1, total)
    else:
        ahead = min(2 * (devices - k - 1) + (pieces - 1) * devices, total)
    group = devices * pieces

    def nth(number: int, *, forward: bool) -> Slot:
        if pieces == 1:
            return (forward, 0, number)
        piece = number % group // devices
        own = piece if forward else pieces - 1 - piece
        return (forward, own, number // group * devices + number % devices)

    found = [nth(n, forward=True) for n in range(ahead)]
    for n in range(total - ahead):
        found += [nth(ahead + n, forward=True), nth(n, forward=False)]
    return (*found, *(nth(n, forward=False) for n in range(total - ahead, total)))


def _step(
    problem: Problem, pieces: Pieces, parts: StepParts, schedule: Schedule, stage: IntArray
) -> PeerStep | None:
    """None where the schedule cannot run, because layers are not in one order."""
    device = _devices(pieces, pieces.devices[stage % schedule.stages])
    step = with_local_sums(Staged(problem.graph, stage, device, pieces.micro_batch), parts)
    problem = replace(problem, graph=step.graph)
    try:
        timeline = simulate(
            problem, step.device, None, _orders(problem, pieces, parts, schedule, step)
        )
    except ValueError:
        return None
    stages = f"{schedule.stages} stages"
    if schedule.pieces > 1:
        stages = f"{schedule.stages}x{schedule.pieces} stages"
    words = f"{stages}, {pieces.micro_batches} micro-batches"
    return peer_step(schedule.name, words, problem, timeline)


def _devices(pieces: Pieces, wanted: IntArray) -> IntArray:
    """int64[n]: the wanted devices, one for each unit, and another where that cannot run it."""
    tables = pieces.tables
    chosen = wanted[tables.first]
    for u in np.flatnonzero(~tables.able[np.arange(len(chosen)), chosen]).tolist():
        able = [int(d) for d in tables.preferred if tables.able[u, d]]
        chosen[u] = able[0] if able else chosen[u]
    device: IntArray = chosen[tables.unit]
    return device


def _orders(
    problem: Problem, pieces: Pieces, parts: StepParts, schedule: Schedule, step: Staged
) -> list[list[int]]:
    """Shared operators that need no micro-batch run first, sums of gradients with the backward half
    of the latest micro-batch in them, all others at the end."""
    graph, before = problem.graph, set(parts.before.tolist())
    number = {int(d): k for k, d in enumerate(pieces.devices[: schedule.stages])}
    slots = [{slot: n for n, slot in enumerate(row)} for row in schedule.order]
    at = np.full(graph.operator_count, -1.0)
    latest = np.where(graph.micro_batch >= 0, step.micro_batch, -1)
    after = set(parts.after.tolist())
    for i in graph.topological_order.tolist():
        row, m = slots[number[int(step.device[i])]], int(step.micro_batch[i])
        if m >= 0:
            own = int(step.stage[i]) // schedule.stages
            at[i] = row.get((bool(parts.forward[i]), own, m), len(row))
        elif i in after:
            at[i] = len(row)
        elif i not in before:
            made = graph.tensor_producer[graph.input_tensors(i)]
            latest[i] = latest[made].max(initial=-1)
            last = (row.get((False, own, int(latest[i])), -1) for own in range(schedule.pieces))
            at[i] = max(last)
    return [
        sorted(np.flatnonzero(step.device == d).tolist(), key=lambda i: (at[i], graph.position[i]))
        for d in range(len(problem.cluster.devices))
    ]
