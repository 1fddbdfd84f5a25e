"""HSDAG's co-location heuristic: its appendix G.

In topological order, an operator and its successor become one where the successor is its only one
and it is the successor's only predecessor. The sets are the nodes of a coarsened graph, on which
the paper learns. It is ColocRL's rule (colocrl.py) asked of both ends.

The paper gives a set the mean of its members' types, which is a feature for its policy. Here it has
the type of its first member, as everywhere.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph
from placewire.optimizer.reductions.reduction import Reduction


def reduce_as_hsdag(problem: Problem) -> Reduced:
    """Chains, where memory, devices and co-location keys let them be one operator."""
    from placewire.optimizer.published.kernels.pairs import merge_pairs

    graph = MergingGraph(problem)
    source, target, n = graph.tables.source, graph.tables.target, problem.graph.operator_count
    successors = np.bincount(source, minlength=n)
    predecessors = np.bincount(target, minlength=n)
    edges = graph.edges_in_order()
    sole = edges[(successors[source[edges]] == 1) & (predecessors[target[edges]] == 1)]
    merge_pairs(graph.tables, source[sole], target[sole])
    return contract(problem, graph.groups())


REDUCTION = Reduction(
    "chains of only child and only parent",
    reduce_as_hsdag,
    paper="Duan et al., HSDAG (2024)",
    section="appendix G",
)
