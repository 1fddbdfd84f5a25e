"""Which operators an annealing move may carry to another device together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optimizer.engines.units import members_of_units, unit_of_operator
from optimizer.problem import Problem

if TYPE_CHECKING:
    from optimizer.kernels.anneal import Neighbourhood

_CHAIN_LENGTHS = (4, 16)
_BALL_SIZES = (5, 12, 30)
_ALPHA_QUANTILES = (0.0, 0.5, 0.8)


def make_neighbourhood(problem: Problem) -> Neighbourhood:
    """Single units, units with one consumer's, chains along the consumer of the largest tensor,
    the clusters that operator fusion finds at several thresholds, and balls around units. Units
    are whole co-location groups, so no move separates one."""
    from optimizer.kernels.anneal import Neighbourhood

    unit = unit_of_operator(problem)
    members = members_of_units(unit)
    sets: set[tuple[int, ...]] = {(u,) for u in range(len(members))}
    sets |= _chains(problem, unit.tolist())
    sets |= _clusters(problem, unit.tolist())
    sets |= _balls(problem, unit.tolist(), len(members))
    # Half of what a large set moves is the whole graph; such a move is only a renaming of devices.
    usable = sorted(s for s in sets if len(s) == 1 or 2 * len(s) <= len(members))
    operators = [[i for u in s for i in members[u]] for s in usable]
    start = np.zeros(len(operators) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in operators], out=start[1:])
    flat = np.array([i for row in operators for i in row], dtype=np.int64)
    return Neighbourhood(start, flat)


def _chains(problem: Problem, unit: list[int]) -> set[tuple[int, ...]]:
    """From each operator along the consumer of its largest tensor, cut at several lengths."""
    graph = problem.graph
    following = [-1] * graph.operator_count
    largest = [-1] * graph.operator_count
    source, target, tensor = graph.edges
    sizes = graph.tensor_bytes[tensor]
    for i, j, size in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
        if size > largest[i]:
            following[i], largest[i] = j, size
    pairs = zip(source.tolist(), target.tolist(), strict=True)
    found = {tuple(sorted({unit[i], unit[j]})) for i, j in pairs}
    for i in range(graph.operator_count):
        chain, j = [unit[i]], following[i]
        while j >= 0 and len(chain) < max(_CHAIN_LENGTHS):
            chain.append(unit[j])
            if len(chain) in _CHAIN_LENGTHS:
                found.add(tuple(sorted(set(chain))))
            j = following[j]
    return found


def _clusters(problem: Problem, unit: list[int]) -> set[tuple[int, ...]]:
    from optimizer.reductions.fusion import fuse, operator_delay

    found: set[tuple[int, ...]] = set()
    delays = operator_delay(problem)
    for alpha in sorted({float(np.quantile(delays, q)) for q in _ALPHA_QUANTILES}):
        small, undo = fuse(problem, alpha)
        count = small.graph.operator_count
        home, _ = undo(np.arange(count, dtype=np.int64), np.zeros(count))
        clusters: dict[int, set[int]] = {}
        for i, label in enumerate(home.tolist()):
            clusters.setdefault(label, set()).add(unit[i])
        found |= {tuple(sorted(cluster)) for cluster in clusters.values()}
    return found


def _balls(problem: Problem, unit: list[int], count: int) -> set[tuple[int, ...]]:
    """Each unit with its nearest neighbours, whichever way the tensors go, largest tensor first."""
    graph = problem.graph
    near: list[dict[int, int]] = [{} for _ in range(count)]
    source, target, tensor = graph.edges
    sizes = graph.tensor_bytes[tensor]
    for i, j, size in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
        u, v = unit[i], unit[j]
        if u != v:
            near[u][v] = near[v][u] = max(near[u].get(v, 0), size)
    found = set()
    for u in range(count):
        ball, known = [u], {u}
        for center in ball:  # grows while it is walked, nearest first
            for v, _ in sorted(near[center].items(), key=lambda item: (-item[1], item[0])):
                if v not in known and len(ball) < max(_BALL_SIZES):
                    known.add(v)
                    ball.append(v)
        found |= {tuple(sorted(ball[:size])) for size in _BALL_SIZES if len(ball) >= size}
    return found
