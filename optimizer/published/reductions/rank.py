"""Operator co-location by rank: thesis, section 4.2 and (4.1); QuickP (7).

r_i = p_i + max over successors j of (r_j + t_ij / b), walked against the topological order. Each
operator with more than one successor is tied to the successor that attains the maximum; the weakly
connected components of these ties are the co-location groups.

What may be tied to what is in groups.py. Where ties compete, the one of most bytes comes first: a
tie left out may cost its transfer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.shared.groups import Groups
from placewire.optimizer.published.reductions.shared.transfers import mean_rate
from placewire.optimizer.reductions.merging import distinct_edges, operator_delay, recorded_position


@dataclass(frozen=True)
class RankRates:
    """Bits per second of b: in the rank itself, and where the best successor is chosen."""

    rank: float
    choice: float


def thesis_rank_rates(cluster: Cluster) -> RankRates:
    """(4.1) has one b, and in the joint problem b is what is to be found: here the mean over pairs
    of servers of what an even split gives them; inside a lone server, the rate there."""
    rate = mean_rate(cluster) or cluster.intra_server_bits_per_second
    return RankRates(rate, rate)


def icc_rank_rates(cluster: Cluster) -> RankRates:
    """QuickP (7): ranks count with the links inside a server where one server could hold all
    devices, else with those between servers; the successor is chosen by the latter in either case
    (of a lone server: by its NICs)."""
    inside = cluster.intra_server_bits_per_second
    largest = max(len(server.devices) for server in cluster.servers)
    between = mean_rate(cluster) or float(cluster.nic_rates.sum(axis=1).mean()) or inside
    return RankRates(inside if len(cluster.devices) <= largest else between, between)


def rank_colocation(problem: Problem, rates: RankRates) -> IntArray:
    """int64[n]: keys of the groups, the graph's own ones among them; -1 for ungrouped operators."""
    graph = problem.graph
    best = np.array(best_successors(problem, rates), dtype=np.int64)
    source, target, size = distinct_edges(graph)
    ties = np.flatnonzero(target == best[source])
    ties = ties[np.lexsort((recorded_position(graph)[source[ties]], -size[ties]))]
    groups = Groups(problem)
    for i, j in zip(source[ties].tolist(), target[ties].tolist(), strict=True):
        groups.join(i, j)
    return groups.keys()


def best_successors(problem: Problem, rates: RankRates) -> list[int]:
    """The successor on the costliest path of each operator with more than one, else -1. Of equals
    the first in the graph."""
    graph = problem.graph
    source, target, size = distinct_edges(graph)
    start = np.searchsorted(source, np.arange(graph.operator_count + 1)).tolist()
    following = target.tolist()
    in_rank = (size * 8.0 / rates.rank).tolist()
    in_choice = (size * 8.0 / rates.choice).tolist()
    delay = operator_delay(problem).tolist()
    rank = [0.0] * graph.operator_count
    best = [-1] * graph.operator_count
    for i in graph.topological_order[::-1].tolist():
        tail, most = 0.0, -1.0
        for e in range(start[i], start[i + 1]):
            j = following[e]
            tail = max(tail, rank[j] + in_rank[e])
            if rank[j] + in_choice[e] > most:
                most = rank[j] + in_choice[e]
                best[i] = j
        rank[i] = delay[i] + tail
        if start[i + 1] - start[i] < 2:
            best[i] = -1
    return best


def expand_groups(problem: Problem, colocation: IntArray, beta: float) -> IntArray:
    """int64[n]: the groups after expansion (thesis, 4.3): an ungrouped operator of less than beta
    seconds with a neighbour in a group joins that group.

    What counts is the groups as they came, so that the order in which operators are visited does
    not matter and no group creeps along a chain. Of several groups the one that exchanges most
    bytes with the operator is joined, where it has room.
    """
    groups = Groups(problem, colocation)
    delay = operator_delay(problem)
    light = (colocation < 0) & (delay < beta)
    source, target, size = distinct_edges(problem.graph)
    ends = np.concatenate([np.stack([source, target]), np.stack([target, source])], axis=1)
    wanted = light[ends[0]] & (colocation[ends[1]] >= 0)
    joiner, neighbour = ends[:, wanted]
    pairs, place = np.unique(np.stack([joiner, colocation[neighbour]]), axis=1, return_inverse=True)
    traffic = np.zeros(pairs.shape[1], dtype=np.int64)
    np.add.at(traffic, place.reshape(-1), np.concatenate([size, size])[wanted])
    member = {int(k): int(i) for i, k in enumerate(colocation.tolist()) if k >= 0}
    order = np.lexsort((pairs[1], -traffic, pairs[0]))
    done: set[int] = set()
    for i, key in pairs[:, order].T.tolist():
        if i not in done and groups.join(member[key], i):
            done.add(i)
    return groups.keys()
