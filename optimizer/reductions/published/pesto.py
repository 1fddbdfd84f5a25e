"""Pesto's batch merging, as far as the thesis and QuickP tell of it.

Many vertices are merged in one batch (thesis, 2.3); an edge may be merged where it is the only path
between its ends (thesis, 4.1; QuickP, IV-B, which name Pesto for it); graphs are coarsened to about
200 operators (thesis, 3.3). They do not tell how a batch is chosen. Here it takes edges between
neighbouring levels, which are such only paths, heaviest first, each operator once, and none beside
another pair of the same levels (kernels/batches.py): the batch as a whole then makes no cycle.
Batches follow one another until the target is met.
"""

from __future__ import annotations

import numpy as np

from optimizer.problem import Problem
from optimizer.reductions.contract import Reduced, contract
from optimizer.reductions.merging import MergingGraph

TARGET_OPERATORS = 200


def reduce_as_pesto(problem: Problem) -> Reduced:
    """To about 200 operators."""
    return merge_in_batches(problem, TARGET_OPERATORS)


def merge_in_batches(problem: Problem, target_operators: int) -> Reduced:
    """More operators are left where memory, devices, co-location keys or missing edges forbid to
    merge on. Raises ValueError for a target below 1."""
    from optimizer.kernels.batches import merge_batch

    if target_operators < 1:
        raise ValueError(f"target_operators is {target_operators}; at least 1 can be left")
    graph = MergingGraph(problem)
    heaviest_first = np.lexsort((graph.edges_in_order().argsort(), -graph.edge_bytes))
    while graph.node_count > target_operators:
        if not merge_batch(graph.tables, heaviest_first, target_operators):
            break
    return contract(problem, graph.groups())
