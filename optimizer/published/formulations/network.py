"""What a transfer between two devices takes in each formulation's own network.

The papers have one device per server (ICC: k equal devices, joined faster inside the server), equal
NICs, and a fat tree or a plane per NIC that never blocks. Only this is added for other clusters:
two devices of one server are joined at the intra-server rate, and a pair of devices with a link of
its own by that link; both rates are given, never decided. Bandwidths that are decided also fit into
the uplinks of pods, in both directions. A cluster whose servers do not all reach each other is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.network.nics import widest_rates
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.formulations.errors import FormulationRefusedError
from placewire.optimizer.registry import Refusal


@dataclass(frozen=True)
class SharedLimit:
    """What some pairs of servers share: pairs int64[m], their indices in Network.server_pairs; part
    float64[m]: which part of it each takes at its widest b. Together they take at most 1."""

    pairs: IntArray
    part: FloatArray


@dataclass(frozen=True)
class Network:
    """The q ordered pairs of two devices: source, target int64[q]. A transfer of t bits takes
    latency + t * per_bit, float64[q] each. decided int64[q] is the index of the pair's servers in
    server_pairs, where t / b is added, or -1 where nothing is decided.

    server_pairs int64[k, 2]: the pairs whose b is decided; widest float64[k] bits per second: the
    largest b of each; shared: a limit for each sender, B of (3.7), and for each direction of each
    uplink of a pod. A pair with per_bit inf cannot be used at all."""

    source: IntArray
    target: IntArray
    latency: FloatArray
    per_bit: FloatArray
    decided: IntArray
    server_pairs: IntArray
    widest: FloatArray
    shared: tuple[SharedLimit, ...]

    @property
    def even(self) -> FloatArray:
        """float64[k] bits per second: b where each limit is split evenly over its pairs."""
        part = np.ones(len(self.widest))
        for limit in self.shared:
            mine = 1.0 / (len(limit.pairs) * limit.part)
            part[limit.pairs] = np.minimum(part[limit.pairs], mine)
        return np.asarray(part * self.widest)

    @property
    def reached(self) -> FloatArray:
        """float64[q]: 1 where the pair can be used, else 0."""
        return np.isfinite(self.per_bit).astype(np.float64)

    @property
    def uniform(self) -> bool:
        """Whether every pair has the same cost, as in P1 of the thesis."""
        pairs = np.stack([self.latency, self.per_bit])
        return bool((self.decided < 0).all()) and bool((pairs == pairs[:, :1]).all())


def fixed_network(problem: Problem, *, with_latency: bool) -> Network:
    """Each pair of servers has the full rate of one NIC: that of the slower end on the first rail
    that both are on. with_latency: whether p0 is charged (the thesis) or not (ICC)."""
    _raise(refuse_servers_without_common_rail(problem))
    server, widest = problem.cluster.server_of_device, widest_rates(problem.usable)
    source, target, latency, per_bit = _given(problem)
    for q in np.flatnonzero(np.isnan(per_bit)).tolist():
        both = widest[server[source[q]], server[target[q]]]
        per_bit[q] = 1.0 / both[np.flatnonzero(both)[0]]
    if not with_latency:
        latency = np.zeros_like(latency)
    return _all_given(source, target, latency, per_bit)


def full_mesh(problem: Problem) -> Network:
    """Moirai, section III-A and figure 3: every pair of devices has the rate that it could have
    alone; without a channel of its own, that of the slowest hop of the best way through others."""
    alone = problem.alone(widest_rates(problem.usable))
    source, target = _device_pairs(problem.cluster)
    best = bottleneck_rates(alone.rate)[source, target]
    per_bit = np.divide(1.0, best, out=np.full_like(best, np.inf), where=best > 0)
    return _all_given(source, target, alone.setup[source, target], per_bit)


def _all_given(
    source: IntArray, target: IntArray, latency: FloatArray, per_bit: FloatArray
) -> Network:
    """A network in which no rate is decided."""
    return Network(
        source, target, latency, per_bit, np.full(len(source), -1, dtype=np.int64),
        np.empty((0, 2), dtype=np.int64), np.empty(0), (),
    )  # fmt: skip


def bottleneck_rates(rate: FloatArray) -> FloatArray:
    """float64[D, D]: the rate itself where it is not 0; else that of the slowest hop on the best
    way through other devices, 0 where there is no way."""
    widest = rate.copy()
    for k in range(len(rate)):
        widest = np.maximum(widest, np.minimum(widest[:, k, None], widest[None, k, :]))
    return np.asarray(np.where(rate > 0, rate, widest))


def decided_network(problem: Problem) -> Network:
    """b of each ordered pair of servers is decided, within the sum over a server's NICs (3.7) and
    within the uplinks of pods.

    All device pairs of one server pair have the same b, which is a queue of the server.
    """
    _raise(refuse_missing_rails(problem))
    source, target, latency, per_bit = _given(problem)
    between = np.isnan(per_bit)
    ends = problem.cluster.server_of_device[np.stack([source, target], axis=1)]
    pairs, index = np.unique(ends[between], axis=0, return_inverse=True)
    decided = np.full(len(source), -1, dtype=np.int64)
    decided[between] = index.ravel()
    per_bit[between] = 0.0
    widest, shared = _limits(problem, pairs)
    return Network(source, target, latency, per_bit, decided, pairs, widest, shared)


def _limits(problem: Problem, pairs: IntArray) -> tuple[FloatArray, tuple[SharedLimit, ...]]:
    """(the widest b of each pair, what pairs share): pairs int64[k, 2]. A b takes of an uplink what
    it has on that rail, by its sender's NICs (rates_per_rail)."""
    sender, receiver = pairs.T
    share, transmit = _rail_shares(problem), problem.usable_nic_rates.sum(axis=1)
    limits = []
    for s in np.unique(sender).tolist():
        mine = np.flatnonzero(sender == s)
        limits.append((mine, np.full(len(mine), transmit[s])))
    pod = problem.usable.pod
    for p, uplinks in enumerate(problem.usable.uplinks):
        for end, other in ((sender, receiver), (receiver, sender)):
            mine = np.flatnonzero((pod[end] == p) & (pod[other] != p))
            for r, rate in enumerate(uplinks.tolist()):
                part = share[sender[mine], r]
                limits.append((mine[part > 0], rate / part[part > 0]))
    widest = np.full(len(pairs), np.inf)
    for mine, limit in limits:
        widest[mine] = np.minimum(widest[mine], limit)
    kept = [(mine[widest[mine] > 0], limit[widest[mine] > 0]) for mine, limit in limits]
    shared = (SharedLimit(mine, widest[mine] / limit) for mine, limit in kept if len(mine))
    return widest, tuple(shared)


def _rail_shares(problem: Problem) -> FloatArray:
    """float64[S, R]: the part of a server's b that each of its NICs sends."""
    usable = problem.usable_nic_rates
    return np.asarray(usable / np.maximum(usable.sum(axis=1, keepdims=True), 1e-300))


def rates_per_rail(problem: Problem, network: Network, decided: FloatArray) -> FloatArray:
    """float64[S, S, R] from the decided b float64[k], in bits per second: b is spread over the
    sender's rails in proportion to its NICs. (3.7) ignores slower receivers: rates are cut to what
    the receiving NIC can do, in all too where the problem's model limits that."""
    usable, widest = problem.usable_nic_rates, widest_rates(problem.usable)
    rates = np.zeros((len(usable), *usable.shape))
    share = _rail_shares(problem)
    for (s, t), b in zip(network.server_pairs.tolist(), decided.tolist(), strict=True):
        rates[s, t] = np.minimum(b * share[s], widest[s, t])
    return problem.limits.within(rates)


def _device_pairs(cluster: Cluster) -> tuple[IntArray, IntArray]:
    count = len(cluster.devices)
    ends = np.argwhere(~np.eye(count, dtype=bool)).astype(np.int64)
    return ends[:, 0], ends[:, 1]


def _given(problem: Problem) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """(source, target, latency, seconds per bit) of each pair; over rails the last is nan."""
    source, target = _device_pairs(problem.cluster)
    setup, rate = problem.paths.setup[source, target], problem.paths.rate[source, target]
    with np.errstate(divide="ignore"):
        per_bit = np.where(rate == 0, np.nan, 1.0 / rate)
    latency = np.where(rate == 0, problem.cluster.setup_latency_seconds, setup)
    return source, target, latency, per_bit


def refuse_servers_without_common_rail(problem: Problem) -> Refusal | None:
    """Refuses, for programs with given bandwidths, servers that share no rail."""
    cluster, widest = problem.cluster, widest_rates(problem.usable)
    for s, t in _server_pairs(problem).tolist():
        if not widest[s, t].any():
            return Refusal(
                f"servers {cluster.servers[s].name} and {cluster.servers[t].name} share no rail: "
                "the published formulations assume that every server reaches every other; use "
                "engine auto, which does not"
            )
    return None


def refuse_missing_rails(problem: Problem) -> Refusal | None:
    """Refuses, for programs that decide bandwidths, a server without a NIC on some rail, and a pod
    without an uplink on some rail."""
    cluster = problem.cluster
    for s in np.unique(_server_pairs(problem)).tolist():
        for r in np.flatnonzero(cluster.nic_rates[s] == 0).tolist():
            return Refusal(
                f"server {cluster.servers[s].name} has no NIC on rail {cluster.rails[r]}: the "
                "thesis' (3.7) sums a server's NICs and so assumes one on each rail; use engine "
                "auto, which does not"
            )
        if not len(cluster.rails):
            return Refusal(
                f"server {cluster.servers[s].name} has no NIC: the thesis' P2 and P3 decide the "
                "rates of NICs; put the devices into one server or add NICs"
            )
    pod = cluster.pod_of_server[_server_pairs(problem)]
    crossed = np.unique(pod[pod[:, 0] != pod[:, 1]])
    for k, r in np.argwhere(cluster.uplink_rates[crossed] == 0).tolist():
        return Refusal(
            f"pod {cluster.pods[crossed[k]].name} has no uplink on rail {cluster.rails[r]}: the "
            "thesis' P2 and P3 spread what a server sends over all of its NICs, and on that rail "
            "nothing gets to another pod; state an uplink there, or use engine auto, which needs "
            "none"
        )
    return None


def _server_pairs(problem: Problem) -> IntArray:
    """int64[k, 2]: the pairs of servers whose devices reach each other over rails."""
    pairs = np.stack(_device_pairs(problem.cluster), axis=1)
    over_rails = problem.paths.rate[pairs[:, 0], pairs[:, 1]] == 0
    return np.unique(problem.cluster.server_of_device[pairs[over_rails]], axis=0)


def _raise(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise FormulationRefusedError(refusal.what)
