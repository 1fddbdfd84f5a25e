"""Operator co-location by rank: thesis, section 4.2 and (4.1); QuickP (7).

r_i = p_i + max over successors j of (r_j + t_ij / b), walked against the topological order. Each
operator with more than one successor is tied to the successor that attains the maximum; the weakly
connected components of these ties are the co-location groups.

Operators of one key that the graph already has (tied weights, resources, a parameter and its
update) start out tied, so that a group that meets one of them joins it. No tie makes two such keys
one: every parameter hangs on the forward path, and all their updates would end on one device (the
thesis, 4.3, combines no groups for the same reason). No group grows beyond what fits
(merging.most_unit_bytes), and none of operators that can run on no common device is made. Where
such ties compete, the one of most bytes comes first: a tie left out may cost its transfer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.cluster import Cluster, even_rates
from optimizer.graph import IntArray
from optimizer.problem import Problem
from optimizer.reductions.merging import (
    binding_keys,
    distinct_edges,
    most_unit_bytes,
    operator_bytes,
    operator_delay,
    recorded_position,
    units_of,
)


@dataclass(frozen=True)
class RankRates:
    """Bits per second of b: in the rank itself, and where the best successor is chosen."""

    rank: float
    choice: float


def thesis_rank_rates(cluster: Cluster) -> RankRates:
    """(4.1) has one b, and in the joint problem b is what is to be found: here the mean over pairs
    of servers of what an even split gives them; inside a lone server, the rate there."""
    rate = _between_servers(cluster) or cluster.intra_server_bits_per_second
    return RankRates(rate, rate)


def icc_rank_rates(cluster: Cluster) -> RankRates:
    """QuickP (7): ranks count with the links inside a server where one server could hold all
    devices, else with those between servers; the successor is chosen by the latter in either case
    (of a lone server: by its NICs)."""
    inside = cluster.intra_server_bits_per_second
    largest = max(len(server.devices) for server in cluster.servers)
    between = _between_servers(cluster) or float(cluster.nic_rates.sum(axis=1).mean()) or inside
    return RankRates(inside if len(cluster.devices) <= largest else between, between)


def _between_servers(cluster: Cluster) -> float:
    """Mean over ordered pairs of devices of two servers, joined by NICs or by a link of their own;
    0 where none is."""
    server = cluster.server_of_device
    rate = even_rates(cluster.nic_rates).sum(axis=2)[np.ix_(server, server)]
    for (source, destination), link in cluster.link_of.items():
        rate[source, destination] = link.rate_bits_per_second
    joined = rate[(rate > 0) & (server[:, None] != server[None, :])]
    return float(joined.mean()) if len(joined) else 0.0


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


class Groups:
    """Operators tied to one device, a union-find; the graph's keys are tied from the start."""

    def __init__(self, problem: Problem, colocation: IntArray | None = None) -> None:
        keys = binding_keys(problem.graph.colocation if colocation is None else colocation)
        unit = units_of(keys)
        count = int(unit.max(initial=-1)) + 1
        size = np.zeros(count, dtype=np.int64)
        np.add.at(size, unit, operator_bytes(problem.graph))
        able = np.ones((count, problem.seconds.shape[1]), dtype=np.bool_)
        np.logical_and.at(able, unit, np.isfinite(problem.seconds))
        self._unit = unit.tolist()
        self._above = list(range(count))
        self._bytes = size.tolist()
        self._able = able
        self._keyed = np.zeros(count, dtype=np.bool_)
        self._keyed[unit[keys >= 0]] = True
        self._most_bytes = most_unit_bytes(problem)

    def top(self, i: int) -> int:
        unit = self._unit[i]
        above = self._above
        while above[unit] != unit:
            above[unit] = above[above[unit]]
            unit = above[unit]
        return int(unit)

    def join(self, i: int, j: int) -> bool:
        """Whether operators i and j are in one group now."""
        a, b = self.top(i), self.top(j)
        if a == b:
            return True
        together = self._bytes[a] + self._bytes[b]
        fits = together <= self._most_bytes and bool((self._able[a] & self._able[b]).any())
        if not fits or (self._keyed[a] and self._keyed[b]):
            return False
        self._above[b] = a
        self._bytes[a] = together
        self._able[a] &= self._able[b]
        self._keyed[a] |= self._keyed[b]
        return True

    def keys(self) -> IntArray:
        """int64[n]: one number per group of two operators or more, -1 for the others."""
        tops = np.array([self.top(i) for i in range(len(self._unit))], dtype=np.int64)
        _, group, count = np.unique(tops, return_inverse=True, return_counts=True)
        grouped = count > 1
        number = np.where(grouped, np.cumsum(grouped) - 1, -1)
        keys: IntArray = number[group.reshape(len(tops))]
        return keys


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
