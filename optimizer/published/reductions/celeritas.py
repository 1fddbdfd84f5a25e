"""Optimal Operation Fusion: Celeritas, section 5.1, algorithm 1 and (2) to (6).

Operators in CPD-TOPO order (topological.py) are cut into clusters of neighbours, which can make no
cycle (lemma 2), by Kernighan's dynamic program: of all cuts into clusters of at most R operators
and M bytes the one whose clusters send each other least (4), in seconds of transfers. The paper
takes R = 200 and for M a quarter of a device's memory, here of the largest one. One operator may
hold more alone. Of equal cuts the one with longer clusters is taken; the paper does not say.

Co-location: in the paper (6.1) the first operator of a co-location group decides where the group
goes. So the bytes of a group count where its first operator is, and the others are in that cluster
only where they lie in it; else they are taken out of the order's clusters, those of one cluster
that follow one another as one operator, and tied to it by a key. Of these, what nothing waits for
(updates) stands at the end of the order. Two keys whose first operators share a cluster become one
key, within M.
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
    """most_operators: R; memory_part: M, as a part of the largest device's memory. Raises
    ValueError where R is below 1."""
    if most_operators < 1:
        raise ValueError(f"most_operators is {most_operators}; a cluster has at least 1")
    order, leader = _sequence(problem)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    begin = _begin_of_clusters(problem, order, place[leader[order]], most_operators, memory_part)
    cluster, home = _clusters(begin, place[leader[order]])
    keyed = np.zeros(len(order), dtype=np.bool_)
    keyed[home[place[binding_keys(problem.graph.colocation) >= 0]]] = True
    keys = np.where(keyed[home], home, -1)
    return contract(problem, cluster[place], keys[place])


def _sequence(problem: Problem) -> tuple[IntArray, IntArray]:
    """Operators in the order that is cut, and by operator the first of its co-location group."""
    graph = problem.graph
    walked = cpd_topo(problem)
    unit = units_of(graph.colocation)
    first = np.empty(int(unit.max(initial=-1)) + 1, dtype=np.int64)
    first[unit[walked[::-1]]] = walked[::-1]
    leader = first[unit]
    sends = np.zeros(graph.operator_count, dtype=np.bool_)
    sends[graph.edges[0]] = True
    last = (leader != np.arange(len(leader))) & ~sends
    place = np.empty_like(walked)
    place[walked] = np.arange(len(walked))
    turn = np.where(last, len(walked) + place[leader], place)
    return np.lexsort((place, turn)), leader


def _begin_of_clusters(
    problem: Problem, order: IntArray, leader: IntArray, most_operators: int, memory_part: float
) -> IntArray:
    """int64[n], by place in the order: where its cluster begins. leader int64[n]: places."""
    from placewire.optimizer.published.kernels.breakpoints import breakpoints

    n = len(order)
    source, target, seconds = transfer_seconds(problem)
    place = np.empty_like(order)
    place[order] = np.arange(n)
    by_target = np.argsort(place[target], kind="stable")
    into_start = np.searchsorted(place[target][by_target], np.arange(n + 1))
    size = np.zeros(n, dtype=np.int64)
    np.add.at(size, leader, operator_bytes(problem.graph)[order])
    able = possible_types(problem)[order]
    together = np.ones_like(able)
    np.logical_and.at(together, leader, able)
    able[leader == np.arange(n)] = together[leader == np.arange(n)]
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
    """By place, both int64[n]: the operator that it becomes part of, and the cluster whose device
    it shares. begin, leader: places."""
    home = begin[leader]
    # Followers taken out of the clusters: one operator where they follow one another.
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
