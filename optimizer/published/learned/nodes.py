"""What a policy places, as a graph: nodes are units of operators that share a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.engines.units import unit_able, unit_of_operator, unit_sums
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.published.reductions.hsdag import reduce_as_hsdag
from placewire.optimizer.reductions.merging import recorded_position


@dataclass(frozen=True)
class Nodes:
    """of_operator int64[n]: the node of each operator. Nodes are numbered by their first operator
    in the recorded topological sort.

    able bool[N, D]: devices that can run, and whose memories can hold, all of it; source, target
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
    """Co-location groups, and operators outside any. Raises InfeasibleError as nodes_of does."""
    return nodes_of(problem, unit_of_operator(problem))


def chained_units(problem: Problem) -> Nodes:
    """HSDAG, appendix G: of an operator and its only successor, whose only predecessor it is, one
    node is made, and so on. Raises InfeasibleError as nodes_of does."""
    small, undo = reduce_as_hsdag(problem)
    count = small.graph.operator_count
    home, _ = undo(np.arange(count, dtype=np.int64), np.zeros(count))
    return nodes_of(problem, unit_of_operator(small)[home])


def nodes_of(problem: Problem, label: IntArray) -> Nodes:
    """label int64[n]: operators of one label are one node.

    Raises InfeasibleError where no device can run, and hold the weights of, all of a node.
    """
    graph = problem.graph
    node = _numbered(label, recorded_position(graph))
    weights = unit_sums(node, graph.weight_bytes)[: int(node.max(initial=-1)) + 1]
    able = unit_able(problem, node)
    able &= weights[:, None] <= problem.cluster.memory_bytes[None, :]
    lost = np.flatnonzero(~able.any(axis=1))
    if len(lost):
        first = int(np.flatnonzero(node == lost[0])[0])
        raise InfeasibleError(
            f"no device can run operator {graph.ids[first]!r} with all that shares its device, and "
            "hold their weights; use more memory, or a device type that has times for all of them"
        )
    source, target, _ = graph.edges
    pairs = np.stack([node[source], node[target]], axis=1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return Nodes(node, able, pairs[:, 0].copy(), pairs[:, 1].copy(), weights)


def _numbered(label: IntArray, position: IntArray) -> IntArray:
    _, group = np.unique(label, return_inverse=True)
    group = group.reshape(len(label))
    first = np.full(int(group.max(initial=-1)) + 1, len(label), dtype=np.int64)
    np.minimum.at(first, group, position)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    node: IntArray = number[group]
    return node


def neighbour_rows(nodes: Nodes) -> tuple[IntArray, IntArray]:
    """CSR of both directions: (start int64[N + 1], neighbour int64[...]), each neighbour once."""
    ends = (
        np.concatenate([nodes.source, nodes.target]),
        np.concatenate([nodes.target, nodes.source]),
    )
    pairs = np.unique(np.stack(ends, axis=1), axis=0)
    start = np.zeros(nodes.count + 1, dtype=np.int64)
    np.cumsum(np.bincount(pairs[:, 0], minlength=nodes.count), out=start[1:])
    return start, np.ascontiguousarray(pairs[:, 1])
