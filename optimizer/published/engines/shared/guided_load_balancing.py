"""Guided load balancing: places clusters of operators on devices.

Radulescu, van Gemund: "GLB: a low-cost scheduling algorithm for distributed-memory architectures"
(HiPC 1998), as Celeritas (section 2) describes it: clusters in the order of their earliest start,
each to the device with the least load so far. Here the load of a device is counted in its own
seconds, and an operator's group goes to the least loaded device that has room for it; the papers
consider neither memory nor co-location.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.device_capacity import DeviceCapacities, within_memory
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path


def place_clusters(problem: Problem, engine: str, cluster: IntArray, start: FloatArray) -> Solution:
    """`balanced` within the memories, run by list scheduling. Raises InfeasibleError where a group
    finds no device with room."""

    def attempt(capacities: DeviceCapacities) -> Solution | None:
        device = balanced(problem, capacities, cluster, start)
        if device is None:
            return None
        return Solution(device, by_remaining_path(problem, device), None)

    return within_memory(problem, engine, attempt)


def balanced(
    problem: Problem, capacities: DeviceCapacities, cluster: IntArray, start: FloatArray
) -> IntArray | None:
    """The device of each operator, int64[n], from its cluster int64[n] and its estimated start
    float64[n]; None where an operator finds no device with room."""
    by_start = np.lexsort((np.arange(len(start)), start))
    first = np.full(int(cluster.max(initial=-1)) + 1, len(start), dtype=np.int64)
    np.minimum.at(first, cluster[by_start], np.arange(len(start)))
    seconds, load = problem.seconds.tolist(), [0.0] * len(capacities.left_bytes)
    members: list[list[int]] = [[] for _ in first]
    for i in by_start.tolist():
        members[cluster[i]].append(i)
    for c in np.argsort(first, kind="stable").tolist():
        lightest = sorted(range(len(load)), key=load.__getitem__)
        for i in members[c]:
            d = next((d for d in lightest if capacities.takes(i, d)), -1)
            if d < 0:
                return None
            capacities.put(i, d)
            load[d] += seconds[i][d]
    return np.array(capacities.device, dtype=np.int64)
