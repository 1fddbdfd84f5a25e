"""The MergingGraph, whose nodes reductions merge one pair at a time, and what it is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem

if TYPE_CHECKING:
    from placewire.optimizer.kernels.graphs.contraction import Merging


def operator_delay(problem: Problem) -> FloatArray:
    """float64[n] seconds: p of the thesis; each operator on the slowest device that can run it."""
    delays: FloatArray = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0).max(axis=1)
    return delays


def operator_bytes(graph: OperatorGraph) -> IntArray:
    """int64[n]: what an operator adds to the static sum of thesis (3.2)."""
    return graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes


def most_unit_bytes(problem: Problem) -> int:
    """The most bytes of operators that a reduction ties to one device.

    The thesis assumes that each device has memory enough (theorem 1). Where the whole graph does
    not fit on the largest device, units stay small beside one, so that they can still be packed.
    """
    largest = int(problem.cluster.memory_bytes.max())
    return largest if int(operator_bytes(problem.graph).sum()) <= largest else largest // 8


def distinct_edges(graph: OperatorGraph) -> tuple[IntArray, IntArray, IntArray]:
    """(source, target, bytes) of each pair with an edge, sorted; the bytes of distinct tensors
    between the two add up. Ordering edges of 0 bytes are edges, too."""
    source, target, tensor = graph.edges
    n = max(graph.operator_count, 1)
    pair, place = np.unique(source * n + target, return_inverse=True)
    size = np.zeros(len(pair), dtype=np.int64)
    np.add.at(size, place, graph.tensor_bytes[tensor])
    return pair // n, pair % n, size


def recorded_position(graph: OperatorGraph) -> IntArray:
    """int64[n]: each operator's place in the recorded topological sort."""
    position = np.empty(graph.operator_count, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.operator_count)
    return position


def binding_keys(colocation: IntArray) -> IntArray:
    """int64[n]: the keys that tie several operators; -1 also for the only operator of a key."""
    _, group, count = np.unique(colocation, return_inverse=True, return_counts=True)
    alone = count[group.reshape(len(colocation))] == 1
    keys: IntArray = np.where(alone, -1, colocation)
    return keys


def units_of(colocation: IntArray) -> IntArray:
    """int64[n]: numbers from 0 for the co-location groups, then one per operator outside any."""
    n = len(colocation)
    base = int(colocation.max(initial=-1)) + 1
    labels = np.where(colocation >= 0, colocation, base + np.arange(n))
    units: IntArray = np.unique(labels, return_inverse=True)[1].reshape(n)
    return units


def group_count(graph: OperatorGraph) -> int:
    """The number of co-location keys that tie several operators."""
    keys = graph.colocation
    return int((np.unique(keys[keys >= 0], return_counts=True)[1] > 1).sum())


class MergingGraph:
    """A problem's graph whose nodes can be merged.

    Two nodes may merge if some device type can run both, their co-location keys do not differ (or
    join_keys lets them become one), and their unit (group, or node outside any) stays within
    most_unit_bytes. colocation int64[n] replaces the graph's keys if given.
    """

    def __init__(
        self, problem: Problem, colocation: IntArray | None = None, *, join_keys: bool = False
    ) -> None:
        from placewire.optimizer.kernels.graphs.contraction import Merging

        graph = problem.graph
        n = graph.operator_count
        self.colocation = binding_keys(graph.colocation if colocation is None else colocation)
        self.edge_position = recorded_position(graph)
        source, target, self.edge_bytes = distinct_edges(graph)
        unit = units_of(self.colocation)
        count = int(unit.max(initial=-1)) + 1
        possible = possible_types(problem)
        self.tables: Merging = Merging(
            np.arange(n), source, target,
            *_lists(source, n), *_lists(target, n),
            self.edge_position.copy(), graph.topological_order.copy(),
            operator_delay(problem), possible.copy(),
            unit, np.arange(count), *_unit_columns(problem, unit, count, self.colocation, possible),
            np.zeros(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64),
            np.zeros(2, dtype=np.int64), np.array([n]), most_unit_bytes(problem), join_keys,
            np.array([np.inf]),
        )  # fmt: skip

    @property
    def node_count(self) -> int:
        return int(self.tables.nodes[0])

    def edges_in_order(self) -> IntArray:
        """Edge numbers, by the places of source and then target in the recorded sort."""
        place, tables = self.edge_position, self.tables
        return np.lexsort((place[tables.target], place[tables.source])).astype(np.int64)

    def groups(self) -> IntArray:
        """int64[n]: the node in which each operator is now."""
        return _roots(self.tables.home)

    def keys(self) -> IntArray:
        """int64[n]: the present co-location key of each operator, -1 outside any."""
        unit = _roots(self.tables.unit_home)[self.tables.unit]
        keys: IntArray = np.where(self.tables.keyed[unit], unit, -1)
        return keys


def _roots(home: IntArray) -> IntArray:
    while not np.array_equal(above := home[home], home):
        home = above
    return home.copy()


def possible_types(problem: Problem) -> np.ndarray:
    """bool[n, k]: whether each operator runs on each device type of the cluster."""
    column = {t: k for k, t in enumerate(problem.graph.device_types)}
    types = sorted({device.type for device in problem.cluster.devices})
    seconds = problem.graph.seconds[:, [column[t] for t in types]]
    return np.ascontiguousarray(np.isfinite(seconds))


def _unit_columns(
    problem: Problem, unit: IntArray, count: int, colocation: IntArray, possible: np.ndarray
) -> tuple[np.ndarray, IntArray, FloatArray, np.ndarray]:
    """The columns keyed, unit_bytes, unit_seconds, unit_possible of Merging."""
    keyed = np.zeros(count, dtype=np.bool_)
    keyed[unit[colocation >= 0]] = True
    size = np.zeros(count, dtype=np.int64)
    np.add.at(size, unit, operator_bytes(problem.graph))
    able = np.ones((count, possible.shape[1]), dtype=np.bool_)
    np.logical_and.at(able, unit, possible)
    seconds = np.zeros(count)
    np.add.at(seconds, unit, operator_delay(problem))
    return keyed, size, seconds, able


def _lists(end: IntArray, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The lists of edges that share an `end`: first, last, count per operator and next per edge."""
    order = np.argsort(end, kind="stable").astype(np.int64)
    count = np.bincount(end, minlength=n).astype(np.int64)
    stop = np.cumsum(count)
    first, last = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    some = count > 0
    first[some] = order[stop[some] - count[some]]
    last[some] = order[stop[some] - 1]
    following = np.full(len(end), -1, dtype=np.int64)
    inside = np.ones(max(len(end) - 1, 0), dtype=np.bool_)
    inside[stop[some][:-1] - 1] = False
    following[order[:-1][inside]] = order[1:][inside]
    return first, last, count, following
