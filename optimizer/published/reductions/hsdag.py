"""HSDAG's co-location heuristic: its appendix G.

In topological order, an operator and its successor become one where the operator has no other
successor and the successor no other predecessor: ColocRL's rule (colocrl.py) for both ends of an
edge. The resulting sets are the nodes of a coarsened graph, on which the paper learns.

The paper gives a set the mean of its members' types, as a feature for its policy. Here a set has
the type of its first member, as in all reductions.
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
