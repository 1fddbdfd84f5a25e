"""Operators of one co-location key become one operator, where that makes no cycle.

A parameter and its update enclose the whole step between them, so they stay two operators; the
engines move them together.
"""

from __future__ import annotations

import numpy as np

from optimizer.problem import Problem
from optimizer.reductions.contract import Reduced, contract
from optimizer.reductions.merging import MergingGraph


def merge_colocated(problem: Problem) -> Reduced:
    graph = MergingGraph(problem)
    keys = problem.graph.colocation
    position = np.empty(len(keys), dtype=np.int64)
    position[problem.graph.topological_order] = np.arange(len(keys))
    for key in np.unique(keys[keys >= 0]).tolist():
        members = np.flatnonzero(keys == key)
        kept: list[int] = []
        for j in members[np.argsort(position[members])].tolist():
            for i in kept:
                # Recorded order alone does not say which way a path leads once groups have grown.
                enclosed = graph.reaches(i, j, directly=False) or graph.reaches(j, i, directly=True)
                if not enclosed and graph.may_merge(i, j):
                    graph.merge(i, j)
                    break
            else:
                kept.append(j)
    return contract(problem, graph.groups())
