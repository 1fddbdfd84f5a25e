"""Optimal Operation Fusion: Celeritas, section 5.1, algorithm 1 and (2) to (6).

The CPD-TOPO order (topological.py) is cut into clusters of consecutive operators, which make no
cycle (lemma 2). Of all cuts into clusters of at most R operators and M bytes, Kernighan's dynamic
program takes the one whose clusters send each other least (4), in seconds of transfers. The paper
has R = 200, and for M a quarter of a device's memory, here of the largest device. One operator
alone may exceed M. Of equal cuts, the one with longer clusters is taken; the paper does not say.

Co-location: in the paper (6.1) the first operator of a co-location group decides where the group
goes. So all bytes of a group count at its first operator, and its other operators are part of the
first one's cluster only where they lie in it. Else they are taken out of their own clusters and
tied to the first one's by a key, and consecutive ones tied to one cluster become one operator.
Those of them that nothing waits for (updates) are moved to the end of the order. Where the first
operators of two keys share a cluster, the two keys become one, within M.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.shared.transfers import transfer_seconds
from placewire.optimizer.published.reductions.topological import cpd_topo
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import (
    binding_keys,
    operator_bytes,
    possible_types,
    units_of,
)
from placewire.optimizer.reductions.reduction import Reduction

MOST_OPERATORS = 200
MEMORY_PART = 0.25


def reduce_as_celeritas(problem: Problem) -> Reduced:
    return optimal_operation_fusion(problem, MOST_OPERATORS, MEMORY_PART)


def optimal_operation_fusion(problem: Problem, most_operators: int, memory_part: float) -> Reduced:
    """most_operators: R; memory_part: M as a share of the largest device's memory. Raises
    ValueError where R is below 1."""
    if most_operators < 1:
        raise ValueError(f"most_operators is {most_operators}; a cluster has at least 1")
    order, first = _sequence(problem)
    place = np.argsort(order)
    leader = place[first[order]]
    begin = _begin_of_clusters(problem, order, leader, most_operators, memory_part)
    cluster, home = _clusters(begin, leader)
    keyed = np.zeros(len(order), dtype=np.bool_)
    keyed[home[place[binding_keys(problem.graph.colocation) >= 0]]] = True
    keys = np.where(keyed[home], home, -1)
    return contract(problem, cluster[place], keys[place])


def _sequence(problem: Problem) -> tuple[IntArray, IntArray]:
    """The order that is cut, and for each operator the first one of its co-location group."""
    graph = problem.graph
    walked = cpd_topo(problem)
    unit = units_of(graph.colocation)
    first = np.empty(int(unit.max(initial=-1)) + 1, dtype=np.int64)
    first[unit[walked[::-1]]] = walked[::-1]
    leader = first[unit]
    every = np.arange(graph.operator_count)
    last = (leader != every) & ~np.isin(every, graph.edges[0])
    place = np.argsort(walked)
    turn = np.where(last, len(walked) + place[leader], place)
    return np.lexsort((place, turn)), leader


def _begin_of_clusters(
    problem: Problem, order: IntArray, leader: IntArray, most_operators: int, memory_part: float
) -> IntArray:
    """int64[n]: for each place in the order, the place at which its cluster begins. leader: for
    each place, the place of the first operator of its co-location group."""
    from placewire.optimizer.published.kernels.breakpoints import breakpoints

    n = len(order)
    source, target, seconds = transfer_seconds(problem)
    place = np.argsort(order)
    by_target = np.argsort(place[target], kind="stable")
    into_start = np.searchsorted(place[target][by_target], np.arange(n + 1))
    size = np.zeros(n, dtype=np.int64)
    np.add.at(size, leader, operator_bytes(problem.graph)[order])
    able = possible_types(problem)[order]
    together = np.ones_like(able)
    np.logical_and.at(together, leader, able)
    leads = leader == np.arange(n)
    able[leads] = together[leads]
    before = breakpoints(
        into_start, place[source][by_target], seconds[by_target], leader, size, able,
        most_operators, int(memory_part * problem.cluster.memory_bytes.max()),
    )  # fmt: skip
    begin = np.empty(n, dtype=np.int64)
    end = n
    while end > 0:
        begin[before[end] : end] = before[end]
        end = int(before[end])
    return begin


def _clusters(begin: IntArray, leader: IntArray) -> tuple[IntArray, IntArray]:
    """int64[n] each, for each place: the number of the operator that it becomes part of, and the
    first place of the cluster whose device it shares."""
    home = begin[leader]
    # These are taken out of their clusters, and are one operator where they follow one another.
    follows = home != begin
    continues = follows[1:] & follows[:-1] & (home[1:] == home[:-1])
    new = np.ones(len(begin), dtype=np.bool_)
    new[1:] = np.where(follows[1:] | follows[:-1], ~continues, begin[1:] != begin[:-1])
    return np.cumsum(new) - 1, home


REDUCTION = Reduction(
    "Optimal Operation Fusion: CPD-TOPO order cut where least is sent",
    reduce_as_celeritas,
    paper="Xu et al., Celeritas (2022)",
    section="5.1, algorithm 1, (2)-(6)",
)
