"""The reduction `auto`: makes a graph smaller before the search, by as little as its size asks."""

from __future__ import annotations

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.chain import apply_chain
from placewire.optimizer.reductions.coarsen import reduce_to
from placewire.optimizer.reductions.contract import Reduced
from placewire.optimizer.reductions.fusion import fuse
from placewire.optimizer.reductions.written_updates import merge_updates

# `auto` reduces graphs of more than so many operators, to about so many.
REDUCE_ABOVE = 300
REDUCE_TO = 500
# Our own search begins with about so many operators of a graph whose updates were written out. With
# 500 of BERT's 11,391 operators it came to 323 ms there, and to 358 in the graph as given; with
# 2,500 it came to 293 and 302.
FINE_TO = 2_500
# A reduction that leaves more than this part of the operators gains less than its undo costs.
_WORTH_IT = 0.9


def reduce_mildly(problem: Problem) -> Reduced:
    """Merges updates that are written out. Then it fuses chains and operators without cost, or
    coarsens to about REDUCE_TO operators where that leaves more; neither where the graph is small
    or little would be gained."""
    return apply_chain(problem, (merge_updates, _reduce_mildly))


def reduce_for_search(problem: Problem) -> Reduced:
    """As reduce_mildly, but a graph with merged updates is left as it is up to FINE_TO operators,
    and else reduced to about so many."""
    if merge_updates(problem)[0] is problem:
        return reduce_mildly(problem)
    return apply_chain(problem, (merge_updates, _reduce_finely))


def _reduce_finely(problem: Problem) -> Reduced:
    small = problem.graph.operator_count <= FINE_TO
    return apply_chain(problem, ()) if small else reduce_to(problem, FINE_TO)


def _reduce_mildly(problem: Problem) -> Reduced:
    count = problem.graph.operator_count
    if count <= REDUCE_ABOVE:
        return apply_chain(problem, ())
    reduced = fuse(problem)
    if reduced[0].graph.operator_count > REDUCE_TO:
        reduced = reduce_to(problem, REDUCE_TO)
    worth_it = reduced[0].graph.operator_count <= _WORTH_IT * count
    return reduced if worth_it else apply_chain(problem, ())
