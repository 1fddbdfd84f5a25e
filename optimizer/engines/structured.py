"""Starts that a training step's structure suggests.

Blocks: the order that runs through the model is cut into one piece for each device, so that layers
stay whole and only tensors between pieces are sent; the cuts are moved until the simulated step
gets no shorter. Tails: the main chain stays on the fastest device, and weights with their
gradients and updates go to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.layering import spectral_order, tail_groups
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.problem import Problem

_SHIFTS = (0.5, 0.2, 0.08, 0.03)
_PARTS = (0.15, 0.3, 0.5, 0.75, 1.0)
_KEPT = 2
# Cuts of a step of several micro-batches and more operators are not moved: the search of whole
# pieces moves them better, and these simulations took half a minute of a minute's limit.
_MOVED_UP_TO = 2_000

# (excess, cost) of a solution; smaller is better.
Cost = Callable[[Solution], tuple[float, float]]


def structured_starts(problem: Problem, cost: Cost) -> list[Solution]:
    """The cheapest few of each kind; [] where there is one device or too little to cut."""
    devices = len(problem.cluster.devices)
    if devices < 2 or problem.graph.operator_count < 2 * devices:
        return []
    rank = units.upward_rank(problem, units.typical_transfer_seconds(problem))
    unit = units.unit_of_operator(problem)
    order = spectral_order(problem.graph, unit)
    blocks = [_best_cuts(problem, unit, order, rank, cost, used) for used in _counts(devices)]
    tails = [Solution(device, rank, None) for device in _tails(problem)]
    return [*sorted(blocks, key=cost)[:_KEPT], *sorted(tails, key=cost)[:_KEPT]]


def _counts(devices: int) -> list[int]:
    """How many devices to use: 2, 3, 4, 8, 16, … and all of them."""
    counts = {2, 3, 4, *(2**k for k in range(3, 12)), devices}
    return sorted(count for count in counts if 2 <= count <= devices)


def _finite_seconds(problem: Problem) -> FloatArray:
    """float64[n, D]: 0 where a device cannot run an operator."""
    return np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)


def _fastest_first(problem: Problem) -> IntArray:
    """int64[D]: devices that run everything before those that do not, then by speed."""
    lacking = (~np.isfinite(problem.seconds)).sum(axis=0)
    return np.lexsort((_finite_seconds(problem).sum(axis=0), lacking)).astype(np.int64)


def _best_cuts(
    problem: Problem, unit: IntArray, order: IntArray, rank: FloatArray, cost: Cost, used: int
) -> Solution:
    """Cuts at equal work, then moves each cut for as long as that gains, in ever smaller shifts."""
    work = units.unit_sums(unit, _finite_seconds(problem).mean(axis=1))[order]
    middle = np.cumsum(work) - work / 2
    middle /= max(float(work.sum()), 1e-300)
    devices = _fastest_first(problem)[:used]

    def solution(cuts: FloatArray) -> Solution:
        home = np.empty(len(order), dtype=np.int64)
        home[order] = devices[np.searchsorted(cuts, middle, side="right")]
        return Solution(home[unit], rank, None)

    cuts = np.arange(1, used) / used
    graph = problem.graph
    if graph.operator_count > _MOVED_UP_TO and graph.micro_batch.max(initial=-1) > 0:
        return solution(cuts)
    best = cost(solution(cuts))
    for shift in _SHIFTS:
        gains = True
        while gains:
            gains = False
            for moved in _moved(cuts, shift / used):
                tried = cost(solution(moved))
                if tried < best:
                    best, cuts, gains = tried, moved, True
    return solution(cuts)


def _moved(cuts: FloatArray, shift: float) -> Iterator[FloatArray]:
    """The cuts with one of them, or all, shifted to either side; only those still in order."""
    for which in [*(slice(k, k + 1) for k in range(len(cuts))), slice(None)]:
        for step in (shift, -shift):
            moved = cuts.copy()
            moved[which] += step
            if (np.diff(np.concatenate([[0.0], moved, [1.0]])) >= 0).all():
                yield moved


def _tails(problem: Problem) -> Iterator[IntArray]:
    """Device arrays int64[n]: the tails of most work per byte, spread in the order of the step."""
    graph = problem.graph
    groups = tail_groups(graph)
    if not groups:
        return
    fast = _fastest_first(problem)
    finite = _finite_seconds(problem).mean(axis=1)
    work = np.array([float(finite[group].sum()) for group in groups])
    read = np.array([_bytes_in(problem, group) for group in groups])
    by_worth = np.argsort(-work / (read + 1.0), kind="stable")
    reached = np.cumsum(work[by_worth])
    for used in _counts(len(fast)):
        for part in _PARTS:
            within = reached <= part * reached[-1] * (1 + 1e-9)
            device = np.full(graph.operator_count, fast[0], dtype=np.int64)
            load = np.zeros(used - 1)
            for g in np.sort(by_worth[within]).tolist():
                lightest = int(load.argmin())
                load[lightest] += work[g]
                device[groups[g]] = fast[1 + lightest]
            yield device


def _bytes_in(problem: Problem, group: list[int]) -> float:
    """Bytes of the tensors that the group reads and does not make."""
    graph, inside = problem.graph, set(group)
    start, tensors = graph.inputs
    read = {e for i in group for e in tensors[start[i] : start[i + 1]].tolist()}
    made = graph.tensor_producer
    return float(sum(int(graph.tensor_bytes[e]) for e in read if int(made[e]) not in inside))
