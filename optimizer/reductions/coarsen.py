"""A graph made smaller by degrees, for a search on several levels."""

from __future__ import annotations

import numpy as np

from optimizer.problem import Problem
from optimizer.reductions.colocation import merge_keys
from optimizer.reductions.contract import Reduced, contract
from optimizer.reductions.merging import MergingGraph, operator_delay

# From one threshold to the next, as from the lightest operator up to the whole step.
_ALPHA_FACTOR = 2.0**0.5


def reduce_to(problem: Problem, target_operators: int) -> Reduced:
    """About that many operators, coarser by as little as that takes.

    What is co-located becomes one operator where that makes no cycle, and Algorithm 1 runs with a
    rising alpha. Once alpha passes twice the mean weight of target_operators equal parts, edges
    that Algorithm 1 never merges do so too, those of most bytes first, unless that makes a cycle
    or an operator of more than alpha. Operators of two co-location keys may become one, within
    such a part or alpha: then the two keys do. Merging stops as soon as the target is met; where
    memory, unlike devices or missing edges forbid to merge on, more operators are left.
    Raises ValueError for a target below 1.
    """
    from optimizer.kernels import contraction

    if target_operators < 1:
        raise ValueError(f"target_operators is {target_operators}; at least 1 can be left")
    graph = MergingGraph(problem, join_keys=True)
    tables = graph.tables
    delay = operator_delay(problem)
    total = float(delay.sum())
    even_part = 2.0 * total / target_operators
    merge_keys(graph, target_operators)
    tables.most_seconds[0] = even_part
    contraction.fuse(tables, 0.0, target_operators)
    heaviest_edges = np.lexsort((graph.edges_in_order().argsort(), -graph.edge_bytes))
    alpha = float(delay[delay > 0].min(initial=total))
    while graph.node_count > target_operators:
        tables.most_seconds[0] = max(alpha, even_part)
        contraction.fuse(tables, alpha, target_operators)
        if alpha >= even_part:
            contraction.coarsen(tables, heaviest_edges, alpha, target_operators)
        if alpha >= total:
            break
        alpha = min(alpha * _ALPHA_FACTOR, total)
    return contract(problem, graph.groups(), graph.keys())
