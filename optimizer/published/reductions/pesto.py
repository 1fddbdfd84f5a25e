"""Pesto's batch merging, as far as the thesis and QuickP tell of it.

Many vertices are merged in one batch (thesis, 2.3); an edge may be merged where it is the only path
between its ends (thesis, 4.1; QuickP, IV-B, which name Pesto for it); graphs are coarsened to about
200 operators (thesis, 3.3). How a batch is chosen is not told. Here it takes edges between
neighbouring levels, each the only path between its ends, heaviest first, each operator once, and
none beside another pair of the same levels (kernels/batches.py): the batch as a whole then makes no
cycle. Batches follow one another until the target is met. After one that merged few operators,
groups may be twice as large, or a fork of thousands would take as many batches.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph
from placewire.optimizer.reductions.reduction import Reduction

TARGET_OPERATORS = 200
# A batch merged few operators where it merged fewer than one in so many.
_FEW = 50


def reduce_as_pesto(problem: Problem) -> Reduced:
    return merge_in_batches(problem, TARGET_OPERATORS)


def merge_in_batches(problem: Problem, target_operators: int) -> Reduced:
    """Leaves more operators than the target where memory, devices, co-location keys or missing
    edges forbid further merges. Raises ValueError for a target below 1."""
    from placewire.optimizer.published.kernels.batches import merge_batch

    if target_operators < 1:
        raise ValueError(f"target_operators is {target_operators}; at least 1 can be left")
    graph = MergingGraph(problem)
    heaviest_first = np.lexsort((graph.edges_in_order().argsort(), -graph.edge_bytes))
    most_nodes = 2
    while (before := graph.node_count) > target_operators:
        merged = merge_batch(graph.tables, heaviest_first, most_nodes, target_operators)
        if not merged:
            break
        if merged * _FEW < before:
            most_nodes *= 2
    return contract(problem, graph.groups())


REDUCTION = Reduction(
    "batches of edges that make no cycle, to 200 operators",
    reduce_as_pesto,
    paper="Hafeez et al., Pesto (Middleware 2021)",
    section="thesis 2.2, 2.3, 3.3, 4.1",
)
