"""Units, sets of operators that must share a device, and ranks of operators by paths."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray, row_starts
from placewire.optimizer.kernels.graphs.construct import longest_heads, longest_tails
from placewire.optimizer.problem import Problem


def unit_of_operator(problem: Problem) -> IntArray:
    """int64[n]: the unit of each operator, numbered by the units' first operators in the recorded
    sort. A unit is one co-location group, or one operator outside any."""
    position, key = problem.graph.position, problem.graph.colocation
    label = np.where(key >= 0, key, key.max(initial=-1) + 1 + position)
    _, group = np.unique(label, return_inverse=True)
    first = np.full(int(group.max(initial=-1)) + 1, len(key), dtype=np.int64)
    np.minimum.at(first, group, position)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    unit: IntArray = number[group]
    return unit


def unit_rows(unit: IntArray) -> tuple[IntArray, IntArray]:
    """CSR by unit: (start int64[units + 1], operators int64[n], ascending within a unit)."""
    start = row_starts(unit, int(unit.max(initial=-1)) + 1)
    return start, np.argsort(unit, kind="stable").astype(np.int64)


def unit_sums(unit: IntArray, values: IntArray | FloatArray) -> FloatArray:
    """float64[units]: the sum of values [n] over each unit's operators."""
    sums = np.zeros(int(unit.max(initial=-1)) + 1)
    np.add.at(sums, unit, values)
    return sums


def unit_able(problem: Problem, unit: IntArray) -> BoolArray:
    """bool[units, D]: whether the device has times for all of the unit's operators."""
    unable = np.zeros((int(unit.max(initial=-1)) + 1, problem.seconds.shape[1]), dtype=np.bool_)
    np.logical_or.at(unable, unit, ~np.isfinite(problem.seconds))
    return ~unable


def mean_seconds(problem: Problem) -> FloatArray:
    """float64[n]: mean time over the devices that can run the operator; 0 where none can."""
    finite = np.isfinite(problem.seconds)
    total = np.where(finite, problem.seconds, 0.0).sum(axis=1)
    mean: FloatArray = total / np.maximum(finite.sum(axis=1), 1)
    return mean


def upward_rank(problem: Problem, transfer_seconds: FloatArray) -> FloatArray:
    """float64[n]: the longest path from each operator to the end, itself included, in mean seconds
    plus transfer_seconds float64[m] of each tensor. Thesis (4.1); HEFT's upward rank."""
    graph = problem.graph
    return longest_tails(
        graph.topological_order, *graph.outputs, graph.consumers_start, graph.consumers,
        mean_seconds(problem), np.asarray(transfer_seconds, dtype=np.float64),
    )  # fmt: skip


def downward_rank(problem: Problem, transfer_seconds: FloatArray) -> FloatArray:
    """float64[n]: the longest path that ends just before each operator, in mean seconds plus
    transfer_seconds float64[m]: its earliest start on unlimited devices."""
    graph = problem.graph
    return longest_heads(
        graph.topological_order, *graph.inputs, graph.tensor_producer, mean_seconds(problem),
        np.asarray(transfer_seconds, dtype=np.float64),
    )  # fmt: skip


def typical_transfer_seconds(problem: Problem) -> FloatArray:
    """float64[m]: p0 + bytes / b of each tensor, with b the mean rate that pairs of servers can
    count on, or pairs of devices where no rails join servers; 0 for tensors of 0 bytes."""
    cluster = problem.cluster
    totals = problem.policy.expected_pair_rates(problem.usable).sum(axis=2)
    setup, rate = np.array([cluster.setup_latency_seconds]), totals[totals > 0]
    if not len(rate) or cluster.links or problem.model == "msr":
        setup, rate = problem.paths.setup, problem.paths.rate
        apart = ~np.eye(len(rate), dtype=bool) & (rate > 0)
        setup, rate = setup[apart], rate[apart]
    size = problem.graph.tensor_bytes
    if not len(rate):
        return np.zeros(len(size))
    seconds: FloatArray = np.where(size > 0, setup.mean() + size * 8.0 / rate.mean(), 0.0)
    return seconds
