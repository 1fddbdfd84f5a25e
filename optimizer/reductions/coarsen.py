"""A graph made smaller by degrees, for a search on several levels."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph, operator_delay

# No node is to weigh more than this many equal parts of the step at first, …
_EVEN_PARTS = 2.0
# … and the critical path is to grow by no more than this part. Both limits rise by these factors
# after a pass that merged fewer than one node in _FEW.
_SLACK = 0.01
_WEIGHT_FACTOR, _SLACK_FACTOR = 2.0**0.5, 2.0
_FEW = 50


def reduce_to(problem: Problem, target_operators: int) -> Reduced:
    """About that many operators, coarser by as little as that takes.

    First chains and operators without cost (Algorithm 1 with alpha 0). Then passes over all edges,
    those of most bytes first, and over pairs with a common neighbour: two nodes become one where
    that makes no cycle, no node too heavy beside an equal part of the step, and no path too long
    beside the critical one; both limits rise as slowly as the target allows. Operators of two
    co-location keys may become one within the same limit of weight: then the two keys do. Merging
    stops as soon as the target is met; where memory, unlike devices or missing edges forbid to
    merge on, more operators are left. Raises ValueError for a target below 1.
    """
    from placewire.optimizer.kernels.graphs import fusing
    from placewire.optimizer.kernels.graphs.coarsening import coarsen, critical_path

    if target_operators < 1:
        raise ValueError(f"target_operators is {target_operators}; at least 1 can be left")
    graph = MergingGraph(problem, join_keys=True)
    tables = graph.tables
    total = float(operator_delay(problem).sum())
    critical = critical_path(tables)
    most_seconds, slack = _EVEN_PARTS * total / target_operators, _SLACK
    tables.most_seconds[0] = most_seconds
    fusing.fuse(tables, 0.0, target_operators)
    heaviest_first = np.lexsort((graph.edges_in_order().argsort(), -graph.edge_bytes))
    while graph.node_count > target_operators:
        before = graph.node_count
        unlimited = most_seconds >= total and critical * (1 + slack) >= total
        longest = np.inf if unlimited else critical * (1 + slack)
        tables.most_seconds[0] = np.inf if unlimited else most_seconds
        coarsen(tables, heaviest_first, tables.most_seconds[0], longest, target_operators)
        merged = before - graph.node_count
        if unlimited and merged == 0:
            break
        if merged * _FEW < before:
            most_seconds, slack = most_seconds * _WEIGHT_FACTOR, slack * _SLACK_FACTOR
    return contract(problem, graph.groups(), graph.keys())
