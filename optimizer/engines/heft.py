"""Engine `heft`: heterogeneous earliest finish time (Topcuoglu, Hariri, Wu 2002), with memory.

Operators in the order of upward rank; each goes where it would finish first, into a gap between
what is there if it fits. A device takes no operator that its memory has no room for, and operators
of one co-location group follow their first.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import numpy as np

from optimizer.engines.solution import Report, Solution
from optimizer.engines.units import (
    members_of_units,
    typical_transfer_seconds,
    unit_of_operator,
    upward_rank,
)
from optimizer.graph import FloatArray, IntArray
from optimizer.problem import InfeasibleError, Problem, SolveSettings
from optimizer.sharing import decides_rates


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where an operator, with its group, finds no device with room."""
    transfer = typical_transfer_seconds(problem)
    rank = upward_rank(problem, transfer)
    for count_activations in (True, False):
        device = _place(problem, transfer, rank, count_activations=count_activations)
        if device is not None:
            break
    if device is None:
        raise InfeasibleError(
            "heft found no device with room for every co-location group: weights, gradients and "
            "optimizer state alone exceed the memories in this order; try engine auto"
        )
    rates = None
    if decides_rates(problem):
        from optimizer.rates import starting_rates

        rates = starting_rates(problem, device)
    return Solution(device, rank, rates)


@dataclass
class _Slots:
    """Busy intervals of one device, ascending."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def earliest(self, ready: float, seconds: float) -> float:
        """The first time from `ready` on at which `seconds` are free."""
        k = bisect.bisect_right(self.ends, ready)
        at = ready
        for start, end in zip(self.starts[k:], self.ends[k:], strict=True):
            if at + seconds <= start:
                break
            at = max(at, end)
        return at

    def take(self, start: float, seconds: float) -> None:
        k = bisect.bisect_right(self.starts, start)
        self.starts.insert(k, start)
        self.ends.insert(k, start + seconds)


def _place(
    problem: Problem, transfer: FloatArray, rank: FloatArray, *, count_activations: bool
) -> IntArray | None:
    graph, cluster, seconds = problem.graph, problem.cluster, problem.seconds
    unit = unit_of_operator(problem)
    members = members_of_units(unit)
    size = graph.weight_bytes + (graph.activation_bytes if count_activations else 0)
    room = cluster.memory_bytes.astype(np.int64).copy()
    device = np.full(graph.operator_count, -1, dtype=np.int64)
    home = [-1] * len(members)
    slots = [_Slots() for _ in cluster.devices]
    finish = np.zeros(graph.operator_count)
    # A producer's rank is never below its consumer's; ties fall back to the recorded sort.
    position = np.empty(graph.operator_count, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.operator_count)
    for i in np.lexsort((position, -rank)).tolist():
        group = members[int(unit[i])]
        needed = int(size[group].sum())
        choices = [home[int(unit[i])]] if home[int(unit[i])] >= 0 else range(len(slots))
        best = (np.inf, -1, 0.0)
        for d in choices:
            if home[int(unit[i])] < 0 and (
                room[d] < needed or not np.isfinite(seconds[group, d]).all()
            ):
                continue
            ready = 0.0
            for e in graph.input_tensors(i).tolist():
                j = int(graph.tensor_producer[e])
                ready = max(ready, finish[j] + (transfer[e] if device[j] != d else 0.0))
            at = slots[d].earliest(ready, float(seconds[i, d]))
            best = min(best, (at + float(seconds[i, d]), d, at))
        if best[1] < 0:
            return None
        finish[i], d, at = best
        if home[int(unit[i])] < 0:
            home[int(unit[i])] = d
            room[d] -= needed
        device[i] = d
        slots[d].take(at, float(seconds[i, d]))
    return device
