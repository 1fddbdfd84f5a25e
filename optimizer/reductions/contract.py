"""Groups of operators become operators: what every reduction ends with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from optimizer.graph import FloatArray, IntArray, OperatorGraph
from optimizer.problem import Problem

# (device int64[small], priority float64[small]) -> the same for the operators of the large problem
Undo = Callable[[IntArray, FloatArray], tuple[IntArray, FloatArray]]
Reduced = tuple[Problem, Undo]


def contract(problem: Problem, group_of: IntArray) -> Reduced:
    """One operator per group; group_of int64[n] holds any labels.

    Times, weights and activations add up, workspace is the largest. A tensor that leaves its group
    stays a tensor of its own, so that parallel edges sum distinct tensors and each is sent once;
    one that does not leave disappears. Raises GraphError where the groups make a cycle.
    """
    graph = problem.graph
    labels, group = np.unique(group_of, return_inverse=True)
    count = len(labels)
    first = np.full(count, graph.operator_count, dtype=np.int64)
    np.minimum.at(first, group, np.arange(graph.operator_count))
    seconds = np.zeros((count, graph.seconds.shape[1]))
    np.add.at(seconds, group, graph.seconds)
    colocation = np.full(count, -1, dtype=np.int64)
    np.maximum.at(colocation, group, graph.colocation)

    def summed(values: IntArray) -> IntArray:
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, group, values)
        return total

    workspace = np.zeros(count, dtype=np.int64)
    np.maximum.at(workspace, group, graph.workspace_bytes)
    producers, sizes, starts, consumers = _tensors_between(graph, group)
    small = replace(
        graph,
        ids=tuple(graph.ids[i] for i in first),
        types=tuple(graph.types[i] for i in first),
        signatures=("",) * count,
        seconds=seconds,
        weight_bytes=summed(graph.weight_bytes),
        activation_bytes=summed(graph.activation_bytes),
        workspace_bytes=workspace,
        flops=summed(graph.flops),
        traffic_bytes=summed(graph.traffic_bytes),
        colocation=colocation,
        tensor_producer=producers,
        tensor_bytes=sizes,
        consumers_start=starts,
        consumers=consumers,
    )
    return replace(problem, graph=small), _undo(graph, group)


def _tensors_between(
    graph: OperatorGraph, group: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """tensor_producer, tensor_bytes, consumers_start, consumers of what leaves its group."""
    producers: list[int] = []
    sizes: list[int] = []
    starts, consumers = [0], list[int]()
    for e in range(graph.tensor_count):
        home = int(group[graph.tensor_producer[e]])
        outside = dict.fromkeys(group[graph.tensor_consumers(e)].tolist())
        outside.pop(home, None)
        if not outside:
            continue
        producers.append(home)
        sizes.append(int(graph.tensor_bytes[e]))
        consumers.extend(outside)
        starts.append(len(consumers))
    lists = (producers, sizes, starts, consumers)
    first, second, third, fourth = (np.array(values, dtype=np.int64) for values in lists)
    return first, second, third, fourth


def _undo(graph: OperatorGraph, group: IntArray) -> Undo:
    """Members inherit their group's device and priority, among themselves in the recorded order:
    projecting without the priorities was measured to cost a quarter of the step."""
    position = np.empty(graph.operator_count, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.operator_count)

    def undo(device: IntArray, priority: FloatArray) -> tuple[IntArray, FloatArray]:
        urgent_first = np.lexsort((position, -priority[group]))
        inherited = np.empty(graph.operator_count)
        inherited[urgent_first] = -np.arange(graph.operator_count, dtype=np.float64)
        return device[group].astype(np.int64), inherited

    return undo
