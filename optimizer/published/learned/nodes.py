"""The graph that a policy places: each node stands for operators that share a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.engines.units import unit_able, unit_of_operator, unit_sums
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.published.reductions.hsdag import reduce_as_hsdag


@dataclass(frozen=True)
class Nodes:
    """of_operator int64[n]: the node of each operator. Nodes are numbered by their first operator
    in the recorded topological sort.

    able bool[N, D]: the device can run all of the node, and hold its weights; source, target
    int64[E]: distinct edges between different nodes, sorted; weight_bytes float64[N].
    """

    of_operator: IntArray
    able: BoolArray
    source: IntArray
    target: IntArray
    weight_bytes: FloatArray

    @property
    def count(self) -> int:
        return len(self.able)


def units(problem: Problem) -> Nodes:
    """The nodes are co-location groups, and operators outside any. Raises InfeasibleError as
    nodes_of does."""
    return nodes_of(problem, unit_of_operator(problem))


def chained_units(problem: Problem) -> Nodes:
    """The nodes are chains (HSDAG, appendix G): an operator and its only successor become one node
    where the successor has no other predecessor. Raises InfeasibleError as nodes_of does."""
    small, undo = reduce_as_hsdag(problem)
    count = small.graph.operator_count
    home, _ = undo(np.arange(count, dtype=np.int64), np.zeros(count))
    return nodes_of(problem, unit_of_operator(small)[home])


def nodes_of(problem: Problem, label: IntArray) -> Nodes:
    """label int64[n]: operators of one label are one node.

    Raises InfeasibleError where no device can run, and hold the weights of, all of a node.
    """
    graph = problem.graph
    order = graph.topological_order
    _, first, group = np.unique(label[order], return_index=True, return_inverse=True)
    node = np.empty(len(label), dtype=np.int64)
    node[order] = np.argsort(np.argsort(first))[group.reshape(-1)]
    weights = unit_sums(node, graph.weight_bytes)
    able = unit_able(problem, node)
    able &= weights[:, None] <= problem.cluster.memory_bytes[None, :]
    lost = np.flatnonzero(~able.any(axis=1))
    if len(lost):
        lost_operator = int(np.flatnonzero(node == lost[0])[0])
        raise InfeasibleError(
            f"no device can run operator {graph.ids[lost_operator]!r} and all that must share its "
            "device, and hold their weights; use devices with more memory, or of a type that has "
            "times for all of them"
        )
    source, target, _ = graph.edges
    return Nodes(node, able, *between(node[source], node[target]), weights)


def between(source: IntArray, target: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct ones of the edges int64[E] that join different nodes, sorted."""
    pairs = np.stack([source, target], axis=1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return pairs[:, 0].copy(), pairs[:, 1].copy()
