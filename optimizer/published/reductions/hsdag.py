"""HSDAG's co-location heuristic: its appendix G.

In topological order, an operator and its successor become one where the operator has no other
successor and the successor no other predecessor: ColocRL's rule (colocrl.py) for both ends of an
edge. The sets are the nodes of a coarsened graph, on which the paper learns. The paper gives a set
the mean of its members' types, a feature for its policy; here a set has its first member's type.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph
from placewire.optimizer.reductions.reduction import Reduction


def reduce_as_hsdag(problem: Problem) -> Reduced:
    """Merges chains, where memory, devices and co-location keys let them be one operator."""
    from placewire.optimizer.published.kernels.pairs import merge_pairs

    graph = MergingGraph(problem)
    source, target, edges = graph.tables.source, graph.tables.target, graph.edges_in_order()
    successors, predecessors = np.bincount(source)[source], np.bincount(target)[target]
    sole = edges[(successors[edges] == 1) & (predecessors[edges] == 1)]
    merge_pairs(graph.tables, source[sole], target[sole])
    return contract(problem, graph.groups())


REDUCTION = Reduction(
    "chains of only child and only parent",
    reduce_as_hsdag,
    paper="Duan et al., HSDAG (2024)",
    section="appendix G",
)
