"""Engine `heft`: heterogeneous earliest finish time.

Topcuoglu, Hariri, Wu: "Performance-effective and low-complexity task scheduling for heterogeneous
computing" (IEEE TPDS 13(3), 2002), section 4.1: operators in the order of upward rank (equation 8,
mean costs), each where it would finish first (equations 5 to 7), into a gap between what is there
if it fits. The paper knows no memory: here a device takes nothing that it has no room for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.engines.published.shared.rooms import no_room
from optimizer.engines.published.shared.transfer_times import transfer_times
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


@dataclass(frozen=True)
class Schedule:
    """device int64[n], and start float64[n] seconds by the method's own clock."""

    device: IntArray
    start: FloatArray


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where an operator, with its group, finds no device with room."""
    schedule = scheduled(problem, rank(problem))
    return Solution(schedule.device, -schedule.start, None)


def rank(problem: Problem) -> FloatArray:
    """float64[n]: equation 8."""
    return upward_rank(problem, typical_transfer_seconds(problem))


def scheduled(problem: Problem, rank: FloatArray) -> Schedule:
    """By falling rank float64[n], which is never below a consumer's; ties by the recorded sort.
    Raises InfeasibleError."""
    position = np.empty(problem.graph.operator_count, dtype=np.int64)
    position[problem.graph.topological_order] = np.arange(problem.graph.operator_count)
    order = np.lexsort((position, -rank)).astype(np.int64)
    return insert(problem, "heft", order, np.zeros_like(problem.seconds))


def insert(problem: Problem, engine: str, order: IntArray, ahead: FloatArray) -> Schedule:
    """Operators in order int64[n], producers first, each where its finish and ahead float64[n, D]
    are least. Raises InfeasibleError where a group finds no room, activations counted or not."""
    for count_activations in (True, False):
        schedule = _inserted(problem, order, ahead, count_activations=count_activations)
        if schedule is not None:
            return schedule
    raise InfeasibleError(no_room(engine))


def _inserted(
    problem: Problem, order: IntArray, ahead: FloatArray, *, count_activations: bool
) -> Schedule | None:
    from optimizer.kernels.construct import insert_in_order

    graph, times = problem.graph, transfer_times(problem)
    unit = unit_of_operator(problem)
    size = graph.weight_bytes + (graph.activation_bytes if count_activations else 0)
    device, start = np.full(len(order), -1, dtype=np.int64), np.zeros(len(order))
    placed = insert_in_order(
        order, unit, unit_sums(unit, size), unit_able(problem, unit),
        problem.cluster.memory_bytes.astype(np.float64), np.ascontiguousarray(problem.seconds),
        times.setup_seconds, times.seconds_per_byte, graph.tensor_bytes.astype(np.float64),
        np.ascontiguousarray(ahead), *graph.inputs, graph.tensor_producer, device, start,
    )  # fmt: skip
    return Schedule(device, start) if placed else None
