"""Engine `heft`: heterogeneous earliest finish time (Topcuoglu, Hariri, Wu 2002), with memory.

Operators in the order of upward rank; each goes where it would finish first, into a gap between
what is there if it fits. A device takes no operator that its memory has no room for, and operators
of one co-location group follow their first.
"""

from __future__ import annotations

import numpy as np

from optimizer.engines.solution import Report, Solution
from optimizer.engines.units import (
    typical_transfer_seconds,
    unit_able,
    unit_of_operator,
    unit_sums,
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


def _place(
    problem: Problem, transfer: FloatArray, rank: FloatArray, *, count_activations: bool
) -> IntArray | None:
    from optimizer.kernels.construct import insert_by_rank

    graph = problem.graph
    unit = unit_of_operator(problem)
    size = graph.weight_bytes + (graph.activation_bytes if count_activations else 0)
    # A producer's rank is never below its consumer's; ties fall back to the recorded sort.
    position = np.empty(graph.operator_count, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.operator_count)
    device = np.full(graph.operator_count, -1, dtype=np.int64)
    placed = insert_by_rank(
        np.lexsort((position, -rank)).astype(np.int64), unit, unit_sums(unit, size),
        unit_able(problem, unit), problem.cluster.memory_bytes.astype(np.float64),
        np.ascontiguousarray(problem.seconds), transfer, *graph.inputs, graph.tensor_producer,
        device,
    )  # fmt: skip
    return device if placed else None
