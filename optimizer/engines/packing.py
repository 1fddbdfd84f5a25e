"""Starts for models that no single device can hold: cuts of an order that runs through the model.

Two orders are tried: the recorded sort, and the sort folded at its middle, which puts the backward
half of a layer beside its forward half, where the activations between them stay at home.
"""

from __future__ import annotations

import numpy as np

from optimizer.engines.units import members_of_units, unit_of_operator
from optimizer.graph import FloatArray, IntArray
from optimizer.problem import Problem

_FILLS = 24


def packed(problem: Problem) -> list[IntArray]:
    """Up to eight device arrays int64[n]; their simulated memory may still exceed a device."""
    graph = problem.graph
    unit = unit_of_operator(problem)
    members = members_of_units(unit)
    activations = graph.weight_bytes + graph.activation_bytes
    found = []
    for key in (_depth(problem), _folded(problem)):
        first = [float(key[group].min()) for group in members]
        order = np.argsort(first, kind="stable").tolist()
        for size in (activations, graph.weight_bytes):
            sizes = [float(size[group].sum()) for group in members]
            for fill in _tightest_and_full(problem, order, sizes, members):
                found.append(fill[unit])
    return found


def _depth(problem: Problem) -> FloatArray:
    position = np.empty(problem.graph.operator_count)
    position[problem.graph.topological_order] = np.arange(problem.graph.operator_count)
    return position


def _folded(problem: Problem) -> FloatArray:
    """min(operators before, operators after) on the longest paths through each operator."""
    graph = problem.graph
    source, target, _ = graph.edges
    before, after = np.zeros(graph.operator_count), np.zeros(graph.operator_count)
    following: list[list[int]] = [[] for _ in graph.ids]
    for i, j in zip(source.tolist(), target.tolist(), strict=True):
        following[i].append(j)
    for i in graph.topological_order.tolist():
        for j in following[i]:
            before[j] = max(before[j], before[i] + 1)
    for i in graph.topological_order[::-1].tolist():
        for j in following[i]:
            after[i] = max(after[i], after[j] + 1)
    return np.minimum(before, after)


def _tightest_and_full(
    problem: Problem, order: list[int], sizes: list[float], members: list[list[int]]
) -> list[IntArray]:
    """The cuts with the least and with the largest usable fill of each device."""
    fits = []
    for k in range(1, _FILLS + 1):
        cut = _cut(problem, order, sizes, members, k / _FILLS)
        if cut is not None:
            fits.append(cut)
    return [fits[0], fits[-1]] if len(fits) > 1 else fits


def _cut(
    problem: Problem,
    order: list[int],
    sizes: list[float],
    members: list[list[int]],
    fill: float,
) -> IntArray | None:
    """Devices filled one after the other to `fill` of their memory; None where that is too little.

    A unit that the current device cannot run, or has no room for, goes to the roomiest that can.
    """
    room = problem.cluster.memory_bytes * fill
    where = np.full(len(members), -1, dtype=np.int64)
    current = 0
    for u in order:
        able = np.asarray(np.isfinite(problem.seconds[members[u]]).all(axis=0))
        while current < len(room) and able[current] and room[current] < sizes[u]:
            current += 1
        if current < len(room) and able[current]:
            where[u] = current
        else:
            roomiest = int(np.where(able, room, -np.inf).argmax())
            if not able[roomiest] or room[roomiest] < sizes[u]:
                return None
            where[u] = roomiest
        room[where[u]] -= sizes[u]
    return where
