"""Operator co-location by rank: thesis, section 4.2 and (4.1); QuickP (7).

The rank is r_i = p_i + max over successors j of (r_j + t_ij / b), computed against the topological
order. An operator with more than one successor is tied to the one that attains the maximum; the
weakly connected components of these ties are the groups. shared/groups.py says what may be tied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.shared.groups import Groups, tied
from placewire.optimizer.published.reductions.shared.transfers import mean_rate
from placewire.optimizer.reductions.merging import distinct_edges, operator_delay


@dataclass(frozen=True)
class RankRates:
    """b in bits per second: rank for the rank itself, choice for choosing the best successor."""

    rank: float
    choice: float


def thesis_rank_rates(cluster: Cluster) -> RankRates:
    """(4.1) has one b, which the joint problem has yet to find. Here b is the mean over pairs of
    servers of the rates of an even split; with a single server, the rate inside it."""
    rate = mean_rate(cluster) or cluster.intra_server_bits_per_second
    return RankRates(rate, rate)


def icc_rank_rates(cluster: Cluster) -> RankRates:
    """QuickP (7): ranks use the rate inside a server where one server holds all devices, else the
    rate between servers. The successor is always chosen by the rate between servers; with a single
    server, by the rate of its NICs."""
    inside = cluster.intra_server_bits_per_second
    largest = max(len(server.devices) for server in cluster.servers)
    between = mean_rate(cluster) or float(cluster.nic_rates.sum(axis=1).mean()) or inside
    return RankRates(inside if len(cluster.devices) <= largest else between, between)


def rank_colocation(problem: Problem, rates: RankRates) -> IntArray:
    """int64[n]: keys of the groups, the graph's own ones among them; -1 for ungrouped operators."""
    best = np.array(best_successors(problem, rates), dtype=np.int64)
    source, target, _ = distinct_edges(problem.graph)
    return tied(problem, target == best[source])


def best_successors(problem: Problem, rates: RankRates) -> list[int]:
    """For each operator with more than one successor the one on the costliest path, of equal ones
    the first in the graph; -1 for the other operators."""
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

    Only the groups int64[n] as given count, so that the order in which operators are visited does
    not matter and no group creeps along a chain. Of several groups the operator joins the one that
    exchanges most bytes with it and has room.
    """
    groups = Groups(problem, colocation)
    light = (colocation < 0) & (operator_delay(problem) < beta)
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
