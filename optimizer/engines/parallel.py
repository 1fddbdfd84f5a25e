"""Starts that a step suggests whose parts do not need each other, such as micro-batches.

Each part is a copy of the model's work on inputs of its own. Parts go whole to devices, so that no
activation is sent; what they share, which is weights with the sums of their gradients and their
updates, is spread over the same devices by bytes: each weight is sent once to every other device,
and each gradient back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem

# The type of operators that stand for the step's inputs.
INPUT = "input"
# A graph with more inputs is no training step as we capture it, and its sets of inputs are large.
_MOST_INPUTS = 1024


def parallel_starts(problem: Problem) -> Iterator[Solution]:
    """One for each number of devices that the parts can use; none where there is one part."""
    graph, devices = problem.graph, len(problem.cluster.devices)
    work = units.mean_seconds(problem)
    part = parts_of(graph, work)
    count = int(part.max(initial=-1)) + 1
    if count < 2 or devices < 2:
        return
    rank = units.upward_rank(problem, units.typical_transfer_seconds(problem))
    for used in sorted({min(count, devices), *(2**k for k in range(1, 12) if 2**k < devices)}):
        if used <= count:
            device = _spread(problem, part, _fastest(problem)[:used])
            yield Solution(device, rank, None)


def parts_of(graph: OperatorGraph, work: FloatArray) -> IntArray:
    """int64[n]: the number of the part that each operator belongs to, from 0; -1 where it belongs
    to none, because it needs inputs of several parts, or none and several parts read it. work:
    float64[n].

    Inputs of one part meet in much work, as a batch and its targets do in the backward half; those
    of different parts only in sums.
    """
    inputs = graph.types.count(INPUT)
    if not 2 <= inputs <= _MOST_INPUTS:
        return np.full(graph.operator_count, -1, dtype=np.int64)
    reached = _inputs_reached(graph)
    seconds: dict[int, float] = {}
    for held, value in zip(reached, work.tolist(), strict=True):
        seconds[held] = seconds.get(held, 0.0) + value
    parts = [1 << k for k in range(inputs)]
    own = [seconds.get(part, 0.0) for part in parts]
    for held in sorted(seconds, key=lambda held: (held.bit_count(), held)):
        inside = [k for k, part in enumerate(parts) if part & held]
        if len(inside) < 2:
            continue
        # What meets here is one part, if it is as much work as the smallest of what meets.
        if seconds[held] >= min(own[k] for k in inside):
            merged, total = 0, seconds[held]
            for k in reversed(inside):
                merged |= parts.pop(k)
                total += own.pop(k)
            parts.append(merged)
            own.append(total)
    parts.sort(key=lambda part: part & -part)
    number = {held: _only(parts, held) for held in seconds}
    part = [number[held] for held in reached]
    _join_what_one_part_reads(graph, reached, part)
    return np.array(part, dtype=np.int64)


def _join_what_one_part_reads(graph: OperatorGraph, reached: list[int], part: list[int]) -> None:
    """Weights that were put together for one part alone, for example, belong to it."""
    for i in graph.topological_order[::-1].tolist():
        if reached[i] == 0 and graph.colocation[i] < 0:
            readers = (c for e in graph.output_tensors(i) for c in graph.tensor_consumers(e))
            ends = {part[c] for c in readers}
            part[i] = ends.pop() if len(ends) == 1 else -1


def _only(parts: list[int], held: int) -> int:
    """The one part that has all of these inputs; -1 where none has, or there are none."""
    inside = [k for k, part in enumerate(parts) if part & held]
    return inside[0] if len(inside) == 1 else -1


def _inputs_reached(graph: OperatorGraph) -> list[int]:
    """For each operator the inputs of the step that it needs, as a set of bits."""
    inputs = [i for i, kind in enumerate(graph.types) if kind == INPUT]
    bit = {i: 1 << k for k, i in enumerate(inputs)}
    reached = [0] * graph.operator_count
    for i in graph.topological_order.tolist():
        held = bit.get(i, 0)
        for e in graph.input_tensors(i).tolist():
            held |= reached[int(graph.tensor_producer[e])]
        reached[i] = held
    return reached


def _fastest(problem: Problem) -> IntArray:
    """int64[D]: devices that run everything before those that do not, then by speed."""
    finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
    lacking = (~np.isfinite(problem.seconds)).sum(axis=0)
    return np.lexsort((finite.sum(axis=0), lacking)).astype(np.int64)


def _spread(problem: Problem, part: IntArray, devices: IntArray) -> IntArray:
    """int64[n]: each part on one of the devices, what they share on all of them."""
    unit = units.unit_of_operator(problem)
    part = _of_units(unit, part)
    inside = part >= 0
    count = int(part.max(initial=-1)) + 1
    # What a device cannot run goes elsewhere below, and counts here as on others.
    finite = np.isfinite(problem.seconds)
    known = np.where(finite, problem.seconds, units.mean_seconds(problem)[:, None])
    seconds = np.stack(
        [np.bincount(part[inside], column[inside], count) for column in known.T[devices]]
    )
    home, ends = np.empty(count, dtype=np.int64), np.zeros(len(devices))
    for k in np.argsort(-seconds.min(axis=0), kind="stable").tolist():
        first = int((ends + seconds[:, k]).argmin())
        ends[first] += seconds[first, k]
        home[k] = devices[first]
    device = np.where(inside, home[part], -1)
    _spread_shared(problem, unit, device, devices)
    able = units.unit_able(problem, unit)
    of_unit = np.empty(len(able), dtype=np.int64)
    of_unit[unit] = device
    lost = ~able[np.arange(len(able)), of_unit] & able.any(axis=1)
    preferred = np.concatenate([devices, np.setdiff1d(np.arange(able.shape[1]), devices)])
    of_unit[lost] = preferred[able[lost][:, preferred].argmax(axis=1)]
    spread: IntArray = of_unit[unit]
    return spread


def _of_units(unit: IntArray, part: IntArray) -> IntArray:
    """int64[n]: the part of each operator's unit; -1 where its operators are of several."""
    count = int(unit.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    inside = part >= 0
    np.minimum.at(least, unit[inside], part[inside])
    np.maximum.at(most, unit[inside], part[inside])
    of_unit: IntArray = np.where(least == most, most, -1)[unit]
    return of_unit


def _spread_shared(problem: Problem, unit: IntArray, device: IntArray, devices: IntArray) -> None:
    """Gives the operators with device -1 one, whole units. Weights go, the largest first, to the
    device that holds least of them for the rate of its server's NICs; the rest to what reads it, or
    else to what it reads."""
    graph, shared = problem.graph, device < 0
    held = units.unit_sums(unit, np.where(shared, graph.weight_bytes, 0))
    server = problem.cluster.server_of_device[devices]
    rate = np.maximum(problem.usable_nic_rates.sum(axis=1)[server], 1.0)
    load = np.zeros(len(devices))
    of_unit = np.full(len(held), -1, dtype=np.int64)
    of_unit[unit[~shared]] = device[~shared]
    for u in np.argsort(-held, kind="stable").tolist():
        if held[u] <= 0:
            break
        least = int(((load + held[u]) / rate).argmin())
        load[least] += held[u]
        of_unit[u] = devices[least]
    order = graph.topological_order.tolist()
    for i in reversed(order):
        if of_unit[unit[i]] < 0:
            readers = (c for e in graph.output_tensors(i) for c in graph.tensor_consumers(e))
            found = (int(of_unit[unit[c]]) for c in readers if shared[c])
            of_unit[unit[i]] = next((d for d in found if d >= 0), -1)
    for i in order:
        if of_unit[unit[i]] < 0:
            made = (graph.tensor_producer[e] for e in graph.input_tensors(i))
            found = (int(of_unit[unit[j]]) for j in made)
            of_unit[unit[i]] = next((d for d in found if d >= 0), int(devices[0]))
    device[:] = of_unit[unit]
