"""ColocRL's co-location, as the thesis describes it (sections 2.3 and 5.3).

An operator is co-located with its successor if and only if it has no other; so is the successor
with its own, and so on. The operators stay separate: the scheme co-locates and fuses nothing.
HSDAG's heuristic (hsdag.py) asks the same of both ends of an edge.

The thesis applies the rule "recursively until no further groups can be formed". Applied to groups
whose successors are all in one group, it would make one group of any graph with a single sink, and
co-locate operators with several successors. So it is applied to operators: a group is an operator
with none or several successors, and those that lead to it by only successors. Where two co-location
keys of the graph compete for an operator, the tie of most bytes comes first, as in rank.py.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.shared.groups import tied
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import distinct_edges
from placewire.optimizer.reductions.reduction import Reduction


def reduce_as_colocrl(problem: Problem) -> Reduced:
    every = np.arange(problem.graph.operator_count)
    return contract(problem, every, only_successor_groups(problem))


def only_successor_groups(problem: Problem) -> IntArray:
    """int64[n]: keys of the groups, the graph's own among them; -1 outside any."""
    source, _, _ = distinct_edges(problem.graph)
    return tied(problem, np.bincount(source, minlength=problem.graph.operator_count)[source] == 1)


REDUCTION = Reduction(
    "co-location with an only successor; fuses nothing",
    reduce_as_colocrl,
    paper="Mirhoseini et al., ColocRL (ICML 2017)",
    section="thesis 5.3",
)
