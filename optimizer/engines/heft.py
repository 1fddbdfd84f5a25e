"""Heterogeneous earliest finish time (HEFT): a start of the search, and a published engine.

Topcuoglu, Hariri, Wu: "Performance-effective and low-complexity task scheduling for heterogeneous
computing" (IEEE TPDS 13(3), 2002), section 4.1: operators in the order of upward rank (mean costs),
each on the device where it would finish first, in a gap between other operators if it fits there.
The paper ignores memory: here a device takes no operator for which it has no memory left.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.device_capacity import DeviceCapacities, no_capacity
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.transfer_times import transfer_times
from placewire.optimizer.kernels.graphs.construct import insert_in_order
from placewire.optimizer.problem import InfeasibleError, Problem


def quick(problem: Problem) -> Solution:
    """A start of a search, which may exceed a memory. Raises InfeasibleError."""
    order = by_rank(problem)
    for counts in (True, False):
        capacities = DeviceCapacities(problem, count_activations=counts)
        if (found := inserted(problem, capacities, order)) is not None:
            return found
    raise InfeasibleError(no_capacity("heft"))


def upward_ranks(problem: Problem) -> FloatArray:
    """float64[n]: the upward rank of each operator, by mean costs."""
    return units.upward_rank(problem, units.typical_transfer_seconds(problem))


def by_rank(problem: Problem) -> IntArray:
    """int64[n]: operators by falling rank, so that producers come first; ties by recorded sort."""
    return np.lexsort((problem.graph.position, -upward_ranks(problem))).astype(np.int64)


def inserted(
    problem: Problem, capacities: DeviceCapacities, order: IntArray, ahead: FloatArray | None = None
) -> Solution | None:
    """Places the operators in order int64[n], producers first, each on the device where the sum of
    its finish and ahead float64[n, D] is least (None: 0); returns None where a unit finds no
    device. The priority is minus the start by the method's own clock."""
    graph, times = problem.graph, transfer_times(problem)
    unit = units.unit_of_operator(problem)
    device, start = np.full(len(order), -1, dtype=np.int64), np.zeros(len(order))
    placed = insert_in_order(
        order, unit, np.array(capacities.needed), units.unit_able(problem, unit),
        np.array(capacities.left_bytes),
        np.ascontiguousarray(problem.seconds), times.setup_seconds, times.seconds_per_byte,
        graph.tensor_bytes.astype(np.float64),
        np.zeros_like(problem.seconds) if ahead is None else np.ascontiguousarray(ahead),
        *graph.inputs, graph.tensor_producer, device, start,
    )  # fmt: skip
    return Solution(device, -start, None) if placed else None
