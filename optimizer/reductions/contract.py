"""Turns groups of operators into operators: the last step of every reduction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.merging import binding_keys, recorded_position

# Turns (device int64[small], priority float64[small]) of the small problem into those of the large.
Undo = Callable[[IntArray, FloatArray], tuple[IntArray, FloatArray]]
Reduced = tuple[Problem, Undo]


def contract(problem: Problem, group_of: IntArray, colocation: IntArray | None = None) -> Reduced:
    """Makes one operator of each group; group_of int64[n] holds any labels.

    Seconds, weights and activations add up; workspace is the largest; a group whose operators work
    for several micro-batches is of none. A tensor that leaves its group stays a tensor of its own,
    so that distinct tensors between two groups add up and each is sent once; a tensor that does not
    leave disappears. colocation int64[n] replaces the graph's
    keys if given; no group may hold two keys of several operators each. Raises GraphError where the
    groups make a cycle.
    """
    small, group = contracted(problem.graph, group_of, colocation)
    return replace(problem, graph=small), undo_groups(problem.graph, group)


def contracted(
    graph: OperatorGraph, group_of: IntArray, colocation: IntArray | None = None
) -> tuple[OperatorGraph, IntArray]:
    """(the smaller graph; int64[n]: which of its operators each operator became), as contract()."""
    labels, first, group = np.unique(group_of, return_index=True, return_inverse=True)
    count = len(labels)
    group = group.reshape(graph.operator_count)
    seconds = np.zeros((count, graph.seconds.shape[1]))
    for k in range(seconds.shape[1]):
        seconds[:, k] = np.bincount(group, graph.seconds[:, k], count)
    keys = np.full(count, -1, dtype=np.int64)
    np.maximum.at(keys, group, binding_keys(graph.colocation if colocation is None else colocation))

    def summed(values: IntArray) -> IntArray:
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, group, values)
        return total

    workspace = np.zeros(count, dtype=np.int64)
    np.maximum.at(workspace, group, graph.workspace_bytes)
    least, most = graph.micro_batch[first], graph.micro_batch[first]
    np.minimum.at(least, group, graph.micro_batch)
    np.maximum.at(most, group, graph.micro_batch)
    producers, sizes, starts, consumers = _tensors_between(graph, group, count)
    small = replace(
        graph,
        ids=tuple(graph.ids[i] for i in first), types=tuple(graph.types[i] for i in first),
        signatures=("",) * count, modules=tuple(graph.modules[i] for i in first),
        seconds=seconds, weight_bytes=summed(graph.weight_bytes),
        activation_bytes=summed(graph.activation_bytes), workspace_bytes=workspace,
        flops=summed(graph.flops), traffic_bytes=summed(graph.traffic_bytes), colocation=keys,
        micro_batch=np.where(least == most, most, -1),
        tensor_producer=producers, tensor_bytes=sizes, consumers_start=starts, consumers=consumers,
    )  # fmt: skip
    return small, group


def _tensors_between(
    graph: OperatorGraph, group: IntArray, count: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """tensor_producer, tensor_bytes, consumers_start, consumers of the tensors between groups."""
    source, target, tensor = graph.edges
    leaves = group[source] != group[target]
    pairs = np.unique(tensor[leaves] * max(count, 1) + group[target[leaves]])
    kept, readers = np.unique(pairs // max(count, 1), return_counts=True)
    start = np.zeros(len(kept) + 1, dtype=np.int64)
    np.cumsum(readers, out=start[1:])
    home = group[graph.tensor_producer[kept]]
    return home, graph.tensor_bytes[kept], start, pairs % max(count, 1)


def undo_groups(graph: OperatorGraph, group: IntArray) -> Undo:
    """The undo that gives each operator its group's device and priority; operators of a group keep
    the recorded order. An undo without priorities was measured to cost a quarter of the step."""
    position = recorded_position(graph)

    def undo(device: IntArray, priority: FloatArray) -> tuple[IntArray, FloatArray]:
        urgent_first = np.lexsort((position, -priority[group]))
        inherited = np.empty(graph.operator_count)
        inherited[urgent_first] = -np.arange(graph.operator_count, dtype=np.float64)
        return device[group].astype(np.int64), inherited

    return undo
