"""Memory that every placement needs: what proves that none can exist, before any search.

Only what is certain is counted. A unit is one co-location group, or one operator outside any.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import InfeasibleError, Problem


def refuse_impossible(problem: Problem) -> None:
    """Raises InfeasibleError naming the operator or group that fits on no device, or the sum of
    weights that fits into no memory. Silence proves nothing."""
    graph, memory = problem.graph, problem.cluster.memory_bytes
    weights = int(graph.weight_bytes.sum())
    together = sum(memory.tolist())  # as Python's: numpy's sum would overflow at 64 bits
    if weights > together:
        raise InfeasibleError(
            f"weights, gradients and optimizer state hold {_mib(weights)}, the devices together "
            f"{_mib(together)}; add devices or memory"
        )
    key = graph.colocation
    groups = [np.flatnonzero(key == k) for k in np.unique(key[key >= 0])]
    doubtful = (key < 0) & (_at_most(problem) > _room(problem))
    groups += [np.array([i]) for i in np.flatnonzero(doubtful).tolist()]
    for group in groups:
        needed, busiest = _needed(problem, group)
        able = np.isfinite(problem.seconds[group]).all(axis=0)
        if not able.any():
            raise InfeasibleError(
                f"operator {graph.ids[group[0]]!r} and its co-location group can run on no device"
            )
        room = int(memory[able].max())
        if needed > room:
            resident = f"{_mib(int(graph.weight_bytes[group].sum()))} resident"
            unit = f" with its co-location group ({len(group)} operators, {resident})"
            if len(group) == 1:
                unit = f" ({resident})"
            raise InfeasibleError(
                f"operator {graph.ids[busiest]!r}{unit} needs at least {_mib(needed)} of "
                f"memory on one device; the largest has {_mib(room)}; add a device that has more, "
                f"or take a smaller batch"
            )


def _at_most(problem: Problem) -> IntArray:
    """int64[n] bytes, no less than an operator outside any group needs, without its neighbours."""
    graph = problem.graph
    start, tensor = graph.inputs
    consumer = np.repeat(np.arange(graph.operator_count), np.diff(start))
    received = np.zeros(graph.operator_count, dtype=np.int64)
    np.add.at(received, consumer, graph.tensor_bytes[tensor])
    return graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes + received


def _room(problem: Problem) -> IntArray:
    """int64[n] bytes: the largest memory among the devices that can run each; -1 where none can."""
    able = np.isfinite(problem.seconds)
    room: IntArray = np.where(able, problem.cluster.memory_bytes, -1).max(axis=1, initial=-1)
    return room


def _needed(problem: Problem, group: np.ndarray) -> tuple[int, int]:
    """(bytes, operator): the group's weights with the hungriest member's own inputs and output.

    `thesis` counts statically, so there all members' own bytes add up.
    """
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
                # Beside it the producer holds its own bytes, from elsewhere the tensors arrive. A
                # view has none of its own, and may stand on weights that are counted already.
                own_of_j = int(graph.weight_bytes[j] + graph.activation_bytes[j])
                needed += min(own_of_j, sum(sizes))
        best = max(best, (needed, i))
    return weights + best[0], best[1]


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
