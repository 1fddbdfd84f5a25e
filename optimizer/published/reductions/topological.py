"""Celeritas' three topological orders (sections 4.2.2 and 5.1.3): M-TOPO, DFS-TOPO and CPD-TOPO.

Each takes operators from the head of a queue of ready ones. M-TOPO (Baechi's) appends what becomes
ready to the queue's end; DFS-TOPO puts it at the head, so that an operator's successors follow it;
CPD-TOPO does so too, the operators on the longest path first. Where the paper leaves a choice
(children in DFS-TOPO, equal paths in CPD-TOPO), the operator recorded first comes first.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.shared.transfers import transfer_seconds
from placewire.optimizer.reductions.merging import distinct_edges, operator_delay, recorded_position


def m_topo(graph: OperatorGraph) -> IntArray:
    """int64[n]: operators, first to last."""
    return _walked(graph, recorded_position(graph), depth_first=False)


def dfs_topo(graph: OperatorGraph) -> IntArray:
    """int64[n]: operators, first to last."""
    return _walked(graph, recorded_position(graph), depth_first=True)


def cpd_topo(problem: Problem) -> IntArray:
    """int64[n]: operators, first to last; CPD_TOPO of algorithm 1."""
    top, bottom = path_levels(problem)
    longest_first = np.lexsort((recorded_position(problem.graph), -(top + bottom)))
    return _walked(problem.graph, np.argsort(longest_first), depth_first=True)


def path_levels(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """(tlevel, blevel) of (2) and (3), float64[n] seconds each: the longest path of computing and
    transfers to an operator, without its own time, and from the operator, with its own time."""
    delay = operator_delay(problem).tolist()
    source, target, seconds = transfer_seconds(problem)
    order = recorded_position(problem.graph)
    top, bottom = [0.0] * len(delay), list(delay)
    rows = np.stack([source, target]).T.tolist()
    cost = seconds.tolist()
    for e in np.argsort(order[source], kind="stable").tolist():
        i, j = rows[e]
        top[j] = max(top[j], top[i] + delay[i] + cost[e])
    for e in np.argsort(-order[target], kind="stable").tolist():
        i, j = rows[e]
        bottom[i] = max(bottom[i], bottom[j] + cost[e] + delay[i])
    return np.array(top), np.array(bottom)


def _walked(graph: OperatorGraph, turn: IntArray, *, depth_first: bool) -> IntArray:
    """turn int64[n]: of operators that become ready together, the one of least turn comes first."""
    source, target, _ = distinct_edges(graph)
    by_turn = np.lexsort((turn[target], source))
    start = np.searchsorted(source, np.arange(graph.operator_count + 1)).tolist()
    following = target[by_turn].tolist()
    waits_for = np.bincount(target, minlength=graph.operator_count).tolist()
    ready = deque(i for i in np.argsort(turn).tolist() if not waits_for[i])
    order: list[int] = []
    while ready:
        i = ready.popleft()
        order.append(i)
        freed = []
        for j in following[start[i] : start[i + 1]]:
            waits_for[j] -= 1
            if not waits_for[j]:
                freed.append(j)
        if depth_first:
            ready.extendleft(reversed(freed))
        else:
            ready.extend(freed)
    return np.array(order, dtype=np.int64)
