"""Bandwidth for a job that places itself: from how much each server sends to each other one.

Rates are in proportion to the traffic, as large as the NICs allow: on each rail the pairs share one
factor, at which the first NIC is full (the maximum concurrent flow of one rail, whose paths are
fixed). So transfers that start together end together.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.cluster import Cluster, Frozen, even_rates
from placewire.optimizer.names import Sharing

# By source and destination server, in any one unit.
Traffic = Mapping[str, Mapping[str, float]]


class TrafficAllocation(Frozen):
    version: Literal[1] = 1
    cluster: Cluster
    sharing: Sharing
    entitled: float
    traffic: Traffic
    rates_bits_per_second: tuple[tuple[str, str, str, float], ...]

    @cached_property
    def talks(self) -> frozenset[tuple[str, str, str]]:
        rails = {server.name: {nic.rail for nic in server.nics} for server in self.cluster.servers}
        return frozenset(
            (source, destination, rail)
            for source, row in self.traffic.items()
            for destination, weight in row.items()
            if weight > 0
            for rail in rails[source] & rails[destination]
        )


def load_allocation(path: Path) -> TrafficAllocation:
    """Raises OSError, and ValueError where it is none."""
    return TrafficAllocation.model_validate_json(path.read_bytes())


def even_traffic(cluster: Cluster) -> Traffic:
    names = [server.name for server in cluster.servers]
    return {source: {other: 1.0 for other in names if other != source} for source in names}


def allocate(
    cluster: Cluster, traffic: Traffic, sharing: Sharing, entitled: float
) -> TrafficAllocation:
    """traffic: of servers of the cluster, no server to itself, no weight below 0. Under `job` and
    `unshaped` no rates of pairs are decided; under `even` they do not depend on the traffic."""
    if sharing in ("job", "unshaped"):
        rates = np.zeros((len(cluster.servers), len(cluster.servers), len(cluster.rails)))
    elif sharing == "even":
        rates = even_rates(_usable(cluster, entitled))
    else:
        rates = proportional_rates(_usable(cluster, entitled), _weights(cluster, traffic))
    names = [server.name for server in cluster.servers]
    return TrafficAllocation(
        cluster=cluster,
        sharing=sharing,
        entitled=entitled,
        traffic=traffic,
        rates_bits_per_second=tuple(
            (names[s], names[t], cluster.rails[r], float(rates[s, t, r]))
            for s, t, r in np.argwhere(rates > 0).tolist()
        ),
    )


def proportional_rates(
    usable: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[S, S, R], from what each NIC carries float64[S, R] and the traffic float64[S, S]."""
    both = (usable > 0)[:, None, :] & (usable > 0)[None, :, :]
    wanted = weights[:, :, None] * both
    busiest = np.maximum(wanted.sum(axis=1), wanted.sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(busiest > 0, usable / busiest, np.inf).min(axis=0)
    factor[np.isinf(factor)] = 0.0
    rates: NDArray[np.float64] = wanted * factor
    return rates


def _usable(cluster: Cluster, entitled: float) -> NDArray[np.float64]:
    """float64[S, R]: what others leave, and at least what is kept for the job."""
    rates = cluster.nic_rates
    usable: NDArray[np.float64] = np.maximum(rates - cluster.background, entitled * rates)
    return usable


def _weights(cluster: Cluster, traffic: Traffic) -> NDArray[np.float64]:
    """float64[S, S]"""
    index = {server.name: s for s, server in enumerate(cluster.servers)}
    weights = np.zeros((len(index), len(index)))
    for source, row in traffic.items():
        for destination, weight in row.items():
            weights[index[source], index[destination]] = weight
    return weights
