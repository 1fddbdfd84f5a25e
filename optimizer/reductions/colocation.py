"""Merges the operators of each co-location key, where that makes no cycle.

A parameter and its update stay two operators, because the whole step lies between them; the engines
move them together.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph


def merge_colocated(problem: Problem) -> Reduced:
    return contract(problem, merged_by_key(problem, problem.graph.colocation))


def merged_by_key(problem: Problem, colocation: IntArray) -> IntArray:
    """int64[n]: the operator into which each was merged; colocation int64[n] are the keys."""
    from placewire.optimizer.kernels.graphs import fusing

    graph = MergingGraph(problem, colocation)
    keys = graph.colocation
    by_key = np.lexsort((graph.edge_position, keys))
    by_key = by_key[keys[by_key] >= 0]
    start = np.flatnonzero(np.diff(keys[by_key], prepend=-1, append=-1))
    fusing.merge_alike(graph.tables, by_key, start)
    return graph.groups()
