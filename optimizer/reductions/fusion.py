"""Operator fusion: thesis, section 4.1, Algorithm 1, repeated until no edge fuses.

An edge (i, j) is merged where i has one successor or j one predecessor (otherwise never), and
either both hold, or the one that hangs on a single edge takes at most alpha. With one of the two
degrees 1, the edge is the only path from i to j in the whole graph, so no cycle can arise.

Degrees count distinct neighbours, ordering edges of 0 bytes included. The thesis assumes that each
device has memory enough (theorem 1); where that is false, groups are kept small beside a device.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from optimizer.graph import FloatArray
from optimizer.problem import Problem
from optimizer.reductions.contract import Reduced, contract
from optimizer.reductions.merging import MergingGraph


def operator_delay(problem: Problem) -> FloatArray:
    """float64[n] seconds: p of the thesis, on the slowest device of the cluster that can run it."""
    delays: FloatArray = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0).max(axis=1)
    return delays


def fuses(out_degree_i: int, in_degree_j: int, p_i: float, p_j: float, alpha: float) -> bool:
    """Algorithm 1, line by line."""
    if out_degree_i >= 2 and in_degree_j >= 2:
        return False
    if out_degree_i == 1 and in_degree_j == 1:
        return True
    return (p_i <= alpha and out_degree_i == 1) or (p_j <= alpha and in_degree_j == 1)


def fuse(problem: Problem, alpha: float = 0.0) -> Reduced:
    """alpha: seconds; 0 fuses chains and operators that cost nothing."""
    graph = MergingGraph(problem)
    delay = operator_delay(problem).tolist()
    position = {i: k for k, i in enumerate(problem.graph.topological_order.tolist())}
    source, target, _ = problem.graph.edges
    edges = sorted(set(zip(source.tolist(), target.tolist(), strict=True)))
    edges.sort(key=lambda edge: (position[edge[0]], position[edge[1]]))
    waiting = deque(edges)
    while waiting:
        i, j = waiting.popleft()
        if j not in graph.following[i]:
            continue  # one of the two has been merged away, or into the other
        degrees = len(graph.following[i]), len(graph.preceding[j])
        if not fuses(*degrees, delay[i], delay[j], alpha) or not graph.may_merge(i, j):
            continue
        graph.merge(i, j)
        delay[i] += delay[j]
        waiting.extend((i, k) for k in sorted(graph.following[i], key=position.__getitem__))
        waiting.extend((k, i) for k in sorted(graph.preceding[i], key=position.__getitem__))
    return contract(problem, graph.groups())
