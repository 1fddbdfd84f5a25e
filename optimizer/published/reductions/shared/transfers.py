"""The seconds of transfers before anything is placed, with which the papers weigh edges."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.network.nics import capacity_of, even_rates
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.merging import operator_delay, units_of


def mean_rate(cluster: Cluster) -> float:
    """Bits per second: the mean over ordered pairs of devices of two servers that are joined by
    NICs (split evenly) or by a link of their own; 0 where no pair is joined."""
    rate, _, apart = _pairs(cluster)
    return float(rate[apart].mean()) if apart.any() else 0.0


def transfer_seconds(problem: Problem) -> tuple[IntArray, IntArray, FloatArray]:
    """(source, target, seconds) per pair of operators joined by an edge, sorted.

    The seconds are c_ij of Celeritas (section 4.2.1: linear in the bytes), p0 + bytes / b for each
    tensor of the pair, with the mean latency and the mean rate between servers; with a single
    server, the rate inside it. An ordering edge of 0 bytes takes no time.
    """
    graph, cluster = problem.graph, problem.cluster
    rate, latency, apart = _pairs(cluster)
    bits = float(rate[apart].mean()) if apart.any() else cluster.intra_server_bits_per_second
    setup = float(latency[apart].mean()) if apart.any() else cluster.setup_latency_seconds
    source, target, tensor = graph.edges
    size = graph.tensor_bytes[tensor]
    each = np.where(size > 0, setup + size * 8.0 / bits, 0.0)
    n = max(graph.operator_count, 1)
    pair, place = np.unique(source * n + target, return_inverse=True)
    seconds: FloatArray = np.bincount(place.reshape(-1), each, len(pair)).astype(np.float64)
    return pair // n, pair % n, seconds


def communication_to_computing(problem: Problem) -> float:
    """CCR of Celeritas (1): seconds of all edges over seconds of all operators (each on the slowest
    device that can run it); 0 where nothing is sent, inf where only computing takes no time. Edges
    inside a co-location group send nothing and do not count."""
    source, target, seconds = transfer_seconds(problem)
    unit = units_of(problem.graph.colocation)
    communication = float(seconds[unit[source] != unit[target]].sum())
    computing = float(operator_delay(problem).sum())
    if communication == 0.0:
        return 0.0
    return communication / computing if computing > 0.0 else np.inf


def _pairs(cluster: Cluster) -> tuple[FloatArray, FloatArray, np.ndarray]:
    """rate float64[D, D] bits per second, latency float64[D, D] seconds, and bool[D, D]: the pairs
    of devices of different servers that a NIC or a link joins."""
    server = cluster.server_of_device
    rate = even_rates(capacity_of(cluster, cluster.nic_rates)).sum(axis=2)[np.ix_(server, server)]
    latency = np.full(rate.shape, cluster.setup_latency_seconds)
    for ends, link in cluster.link_of.items():
        rate[ends] = link.rate_bits_per_second
        latency[ends] = link.setup_latency_seconds
    return rate, latency, (rate > 0) & (server[:, None] != server[None, :])
