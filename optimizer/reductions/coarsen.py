"""Makes a graph smaller to a given size, coarser by as little as that takes."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph, operator_delay

# At first no node takes longer than this many equal parts of the step, and the critical path grows
# by no more than this fraction.
_EVEN_PARTS, _SLACK = 2.0, 0.01
# Both limits rise by these factors after a pass that merged fewer than one node in _FEW.
_WEIGHT_FACTOR, _SLACK_FACTOR, _FEW = 2.0**0.5, 2.0, 50


def reduce_to(problem: Problem, target_operators: int) -> Reduced:
    """Merges operators until about so many are left.

    First it merges chains and operators without cost (Algorithm 1 with alpha 0). Then it makes
    passes over all edges, those of most bytes first, and over pairs with a common neighbour: two
    nodes become one where that makes no cycle, no node that is too long beside an equal part of the
    step, and no path that is too long beside the critical one. Both limits rise as slowly as the
    target allows. Operators of two co-location keys may become one within the same limits, which
    joins the keys. Where memory, unlike devices or missing edges forbid further merges, more
    operators are left. Raises ValueError for a target below 1.
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
