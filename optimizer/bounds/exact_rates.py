"""Adds to the exact model that pairs of servers share the NICs.

For clusters of one device per server and no links, where a unit's device is also its server.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.bounds.exact_model import ExactModel
from placewire.optimizer.bounds.relaxation import nic_capacities, server_pair_rates
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.problem import Problem

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar

# A pair's slowness is its widest rate over its rate, counted in 1 / _STEPS and at most as _SLOWEST.
# The hyperbola 1 / x lies above its tangents at _TANGENTS; the last tangent reaches 0 at _SLOWEST,
# which therefore stands for a pair without a rate.
_STEPS = 64
_SLOWEST = 18
_TANGENTS = (1.0, 1.15, 1.35, 1.6, 2.0, 2.5, 3.2, 4.2, 6.0, 9.0)
# Transfers shorter than this part of the horizon keep their pair's widest rate.
_NEGLIGIBLE = 5e-4


@dataclass(frozen=True)
class Sent:
    """A tensor between operators of the model, by the model's numbers."""

    producer: int
    consumers: tuple[int, ...]
    bits: float


def sent_tensors(problem: Problem, home: IntArray, kept: IntArray) -> tuple[Sent, ...]:
    """The tensors that one kept operator makes for another. home int64[n]: as in Subject; kept
    int64[k]: some of its operators, which the model numbers by their position in kept."""
    graph = problem.graph
    index = np.full(int(home.max(initial=-1)) + 1, -1, dtype=np.int64)
    index[kept] = np.arange(len(kept))
    found = []
    number = index[home]
    producer = number[graph.tensor_producer]
    for e in np.flatnonzero((graph.tensor_bytes > 0) & (producer >= 0)).tolist():
        made, read = int(producer[e]), number[graph.tensor_consumers(e)].tolist()
        readers = tuple(dict.fromkeys(r for r in read if r not in (-1, made)))
        if readers:
            found.append(Sent(made, readers, graph.tensor_bytes[e] * 8.0))
    return tuple(found)


def servers_are_devices(problem: Problem) -> bool:
    cluster = problem.cluster
    return (
        not cluster.links
        and problem.model != "msr"
        and all(len(server.devices) == 1 for server in cluster.servers)
        and len(cluster.rails) > 0
    )


def servers_are_alike(problem: Problem) -> bool:
    """Whether the model is the same when any two servers are exchanged: all have the same NICs, all
    pairs of servers the same rate, and no shared uplinks, which tell pods apart however wide they
    are."""
    if problem.cluster.pods and _rates_are_decided_caps(problem):
        return False
    nics, pairs = nic_capacities(problem), server_pair_rates(problem).sum(axis=2)
    off = pairs[~np.eye(len(nics), dtype=bool)]
    return bool((nics == nics[0]).all() and (off == off.flat[0]).all())


def add_rates(exact: ExactModel, problem: Problem, tensors: Sequence[Sent]) -> None:
    """Where rates are decided and are caps, each pair keeps its rate for the whole step, and the
    rates of a NIC's pairs sum to no more than it transmits (under `contended`, also receives); so
    do those of pairs that leave or enter a pod."""
    widest = server_pair_rates(problem).sum(axis=2)
    if not _rates_are_decided_caps(problem) or not (widest + np.eye(len(widest)) > 0).all():
        return
    capacity = nic_capacities(problem).sum(axis=1)
    slowness = _slowness(exact, widest, capacity, problem.model == "contended", problem.cluster)
    setup = exact.ticks(problem.cluster.setup_latency_seconds)
    unit = exact.relaxation.unit.tolist()
    for tensor in tensors:
        # A small message takes one rail, and could have it to itself.
        if problem.model == "contended" and tensor.bits < CUT_THRESHOLD_BYTES * 8:
            continue
        place = exact.place[unit[tensor.producer]]
        ready = exact.start[tensor.producer] + exact.took(tensor.producer) + setup
        elsewhere = [v for v in tensor.consumers if unit[v] != unit[tensor.producer]]
        for v, ((s, t), steps) in itertools.product(elsewhere, slowness.items()):
            ticks = exact.ticks(tensor.bits / float(widest[s, t]))
            if _NEGLIGIBLE * exact.horizon <= ticks <= exact.horizon:
                # The start is rounded down, by less than a tick.
                slow = exact.model.add(_STEPS * (exact.start[v] - ready + 1) > ticks * steps)
                slow.only_enforce_if(place[s], exact.place[unit[v]][t])


def _rates_are_decided_caps(problem: Problem) -> bool:
    return problem.policy.decides_rates and problem.policy.caps_pairs


def _slowness(
    exact: ExactModel, widest: FloatArray, capacity: FloatArray, receives: bool, cluster: Cluster
) -> dict[tuple[int, int], IntVar]:
    """By pair of servers, in 1 / _STEPS: rounded down, so that no rate is taken as too small.

    With x = slowness >= 1 a pair takes widest / x of a NIC, and 1 / x >= 2 / c - x / c^2 for any c.
    """
    model, servers, scale = exact.model, len(widest), 10**6
    slowness: dict[tuple[int, int], IntVar] = {}
    part: dict[tuple[int, int], IntVar] = {}
    for pair in itertools.permutations(range(servers), 2):
        x = slowness[pair] = model.new_int_var(_STEPS, _SLOWEST * _STEPS, "")
        share = part[pair] = model.new_int_var(0, scale, "")
        for c in _TANGENTS:
            # share / scale >= 2 / c - (x + 1) / _STEPS / c^2, with all roundings on the safe side
            slope = int(np.ceil(scale / (_STEPS * c * c)))
            model.add(share >= int(2 * scale / c) - slope * (x + 1) - 1)

    def fits(pairs: list[tuple[int, int]], room: float) -> None:
        terms: list[Any] = [int(1000 * widest[p] / room) * part[p] for p in pairs]
        model.add(sum(terms) <= 1000 * scale)

    for s in range(servers):
        fits([(s, t) for t in range(servers) if t != s], float(capacity[s]))
        if receives:
            fits([(t, s) for t in range(servers) if t != s], float(capacity[s]))
    pod = cluster.pod_of_server
    for p, carries in enumerate(cluster.uplink_rates.sum(axis=1).tolist()):
        leaves = [(s, t) for s, t in slowness if pod[s] == p != pod[t]]
        if leaves:
            fits(leaves, carries)
            fits([(t, s) for s, t in leaves], carries)
    return slowness
