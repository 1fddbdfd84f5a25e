"""What `auto` does to a graph before the search: as little as its size asks for."""

from __future__ import annotations

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.chain import apply_chain
from placewire.optimizer.reductions.coarsen import reduce_to
from placewire.optimizer.reductions.contract import Reduced
from placewire.optimizer.reductions.fusion import fuse

# Above this many operators `auto` reduces at all, and it reduces to about this many.
REDUCE_ABOVE = 300
REDUCE_TO = 500
# A reduction that leaves more than this part of the operators only costs a projection.
_WORTH_IT = 0.9


def reduce_mildly(problem: Problem) -> Reduced:
    """By size: nothing for a small graph or where little would be gained, else chains and operators
    without cost, else as mildly as brings it to about REDUCE_TO operators."""
    count = problem.graph.operator_count
    if count <= REDUCE_ABOVE:
        return apply_chain(problem, ())
    reduced = fuse(problem)
    if reduced[0].graph.operator_count > REDUCE_TO:
        reduced = reduce_to(problem, REDUCE_TO)
    worth_it = reduced[0].graph.operator_count <= _WORTH_IT * count
    return reduced if worth_it else apply_chain(problem, ())
