"""Refuses, before any search, a problem whose every placement would exceed a memory.

Counts only memory that is certainly needed.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
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
    key = graph.colocation
    groups = [np.flatnonzero(key == k) for k in np.unique(key[key >= 0])]
    able = np.isfinite(problem.seconds)
    largest_of = np.where(able, memory, -1).max(axis=1, initial=-1)  # -1: no device can run it
    doubtful = (key < 0) & (_at_most(problem) > largest_of)
    groups += [np.array([i]) for i in np.flatnonzero(doubtful).tolist()]
    for group in groups:
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


def _at_most(problem: Problem) -> IntArray:
    """int64[n] bytes: an upper limit of `_needed` for an operator outside any group."""
    graph = problem.graph
    start, tensor = graph.inputs
    consumer = np.repeat(np.arange(graph.operator_count), np.diff(start))
    received = np.zeros(graph.operator_count, dtype=np.int64)
    np.add.at(received, consumer, graph.tensor_bytes[tensor])
    return graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes + received


def _needed(problem: Problem, group: np.ndarray) -> tuple[int, int]:
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
