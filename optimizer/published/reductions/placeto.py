"""Placeto's merging to a target size, as the thesis describes it (sections 2.3 and 5.3).

The operator of the lowest cost is merged into one of its successors, or where it has none into one
of its predecessors, until the graph has the target size. The thesis sets the target to the size
that its own reduction leaves (table 5.1).

The descriptions leave open what cost is, which neighbour is taken, and how cycles are avoided. Here
cost is the computing delay, with ties in the recorded order; and of the successors the first in
topological order is taken (of the predecessors the last), to which no other path leads, so that no
cycle arises. Where memory, devices or co-location keys forbid a merge, the next neighbour is tried.
"""

from __future__ import annotations

from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.thesis_and_quickp import reduce_as_thesis
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph
from placewire.optimizer.reductions.reduction import Reduction


def reduce_as_placeto(problem: Problem) -> Reduced:
    """Merges down to the number of operators that the thesis' reduction leaves of the graph."""
    return merge_cheapest(problem, max(1, reduce_as_thesis(problem)[0].graph.operator_count))


def merge_cheapest(problem: Problem, target_operators: int) -> Reduced:
    """More operators are left where no merge is allowed. Raises ValueError for a target below 1."""
    from placewire.optimizer.published.kernels import pairs

    if target_operators < 1:
        raise ValueError(f"target_operators is {target_operators}; at least 1 can be left")
    graph = MergingGraph(problem)
    pairs.merge_cheapest(graph.tables, problem.graph.topological_order, target_operators)
    return contract(problem, graph.groups())


REDUCTION = Reduction(
    "the cheapest operator into a neighbour, to the size that `thesis` leaves",
    reduce_as_placeto,
    paper="Addanki et al., Placeto (NeurIPS 2019)",
    section="thesis 5.3",
)
