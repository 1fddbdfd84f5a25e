"""Refuses, before any search, a problem whose every placement would exceed a memory.

Counts only memory that is certainly needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewire.optimizer.arrays import BoolArray, IntArray, row_starts
from placewire.optimizer.problem import InfeasibleError, Problem


def refuse_impossible(problem: Problem) -> None:
    """Raises InfeasibleError naming the operator or group that fits on no device, or the weights
    that exceed all memories together. A placement may not exist all the same."""
    graph, memory = problem.graph, problem.cluster.memory_bytes
    weights = int(graph.weight_bytes.sum())
    together = sum(memory.tolist())  # Python's integers: numpy's sum would overflow at 64 bits
    if weights > together:
        raise InfeasibleError(
            f"weights, gradients and optimizer state hold {_mib(weights)}, the devices together "
            f"{_mib(together)}; add devices or memory"
        )
    able = np.isfinite(problem.seconds)
    for group in _doubtful(problem, able):
        needed, busiest = _needed(problem, group)
        runs_all = able[group].all(axis=0)
        if not runs_all.any():
            raise InfeasibleError(
                f"operator {graph.ids[group[0]]!r} and its co-location group can run on no device"
            )
        largest = int(memory[runs_all].max())
        if needed > largest:
            unit = f"({_mib(int(graph.weight_bytes[group].sum()))} resident)"
            if len(group) > 1:
                unit = f"with its co-location group of {len(group)} operators {unit}"
            raise InfeasibleError(
                f"operator {graph.ids[busiest]!r} {unit} needs at least {_mib(needed)} of memory "
                f"on one device; the largest has {_mib(largest)}; add a device that has more, or "
                "take a smaller batch"
            )


def _doubtful(problem: Problem, able: BoolArray) -> Iterator[IntArray]:
    """The co-location groups, and then the operators outside any, that no device can run, or that
    may need more memory than those have which can; able bool[n, D]."""
    key, memory = problem.graph.colocation, problem.cluster.memory_bytes
    label = np.where(key >= 0, key, key.max(initial=-1) + 1 + np.arange(len(key)))
    _, group = np.unique(label, return_inverse=True)
    count = int(group.max(initial=-1)) + 1
    unable = np.zeros((count, len(memory)), dtype=np.bool_)
    np.logical_or.at(unable, group, ~able)
    largest_of = np.where(unable, -1, memory).max(axis=1, initial=-1)
    is_doubtful = _at_most(problem, group, count) > largest_of
    by_group = np.argsort(group, kind="stable")
    start = row_starts(group, count)
    for k in np.flatnonzero(is_doubtful).tolist():
        yield by_group[start[k] : start[k + 1]]


def _at_most(problem: Problem, group: IntArray, count: int) -> IntArray:
    """int64[count] bytes: an upper limit of `_needed` for each group; group int64[n]."""
    graph = problem.graph
    start, tensor = graph.inputs
    consumer = np.repeat(np.arange(graph.operator_count), np.diff(start))
    received = np.zeros(graph.operator_count, dtype=np.int64)
    np.add.at(received, consumer, graph.tensor_bytes[tensor])
    own = graph.activation_bytes + graph.workspace_bytes
    weights, most = np.zeros((2, count), dtype=np.int64)
    np.add.at(weights, group, graph.weight_bytes)
    if problem.model == "thesis":
        np.add.at(most, group, own)
    else:
        np.maximum.at(most, group, own + received)
    at_most: IntArray = weights + most
    return at_most


def _needed(problem: Problem, group: IntArray) -> tuple[int, int]:
    """(bytes, operator): the group's weights, and the inputs and output of the member that needs
    most. Under `thesis`, whose count is static, the bytes of all members add up."""
    graph = problem.graph
    weights = int(graph.weight_bytes[group].sum())
    own = graph.activation_bytes + graph.workspace_bytes
    if problem.model == "thesis":
        return weights + int(own[group].sum()), int(group[0])
    inside = set(group.tolist())
    best = (-1, int(group[0]))
    for i in group.tolist():
        needed = int(own[i])
        for j in {int(graph.tensor_producer[e]) for e in graph.input_tensors(i).tolist()}:
            if j not in inside:
                sizes = [
                    int(graph.tensor_bytes[e])
                    for e in graph.output_tensors(j).tolist()
                    if i in graph.tensor_consumers(e)
                ]
                # On this device the producer holds its own bytes; else the tensors arrive. A view
                # has no bytes of its own, and may show weights that are counted already.
                own_of_j = int(graph.weight_bytes[j] + graph.activation_bytes[j])
                needed += min(own_of_j, sum(sizes))
        best = max(best, (needed, i))
    return weights + best[0], best[1]


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
