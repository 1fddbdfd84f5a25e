"""What one transfer takes: paths past the NICs, and how a message is cut over the rails.

There are D devices, S servers and R rails; all rates are payload bits per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import Backend, Model

# A smaller message is not cut over the rails, but travels on one.
CUT_THRESHOLD_BYTES = 64 * 1024


@dataclass(frozen=True)
class Paths:
    """Set-up seconds and bits per second float64[D, D], by source and destination device; the rate
    is 0 where messages travel over the rails."""

    setup: FloatArray
    rate: FloatArray


def paths_past_the_nics(cluster: Cluster, model: Model) -> Paths:
    """The paths that join two devices past the NICs: a link of their own, or their server.

    Under `msr` every tensor goes through host memory: an accelerator pays a transfer for writing it
    and one for reading it; a CPU pays nothing (rate inf).
    """
    server = cluster.server_of_device
    if model == "msr":
        accelerator = np.array([device.type != "cpu" for device in cluster.devices], dtype=float)
        with np.errstate(divide="ignore"):
            rate = cluster.intra_server_bits_per_second / np.add.outer(accelerator, accelerator)
        setup = np.zeros_like(rate)
    else:
        inside = server[:, None] == server[None, :]
        rate = np.where(inside, cluster.intra_server_bits_per_second, 0.0)
        setup = np.where(inside, cluster.setup_latency_seconds, 0.0)
    for (a, b), link in cluster.link_of.items():
        setup[a, b], rate[a, b] = link.setup_latency_seconds, link.rate_bits_per_second
    return Paths(setup, rate)


def alone(cluster: Cluster, past: Paths, rates: FloatArray, *, cuts_equally: bool) -> Paths:
    """Set-up and rate of a transfer that meets no other; over rails, at these rates float64[S, S,
    R]."""
    server = cluster.server_of_device
    total = rates.sum(axis=2)
    if cuts_equally:
        slowest = np.where(rates > 0, rates, np.inf).min(axis=2, initial=np.inf)
        total = np.where(total > 0, (rates > 0).sum(axis=2) * np.minimum(slowest, total), 0.0)
    over_rails = past.rate == 0
    rate = np.where(over_rails, total[server[:, None], server[None, :]], past.rate)
    setup = np.where(over_rails, cluster.setup_latency_seconds, past.setup)
    return Paths(setup, rate)


def cuts_equally(backend: Backend, model: Model) -> bool:
    """Whether a message is cut into equal parts; the thesis' model has one rate per pair."""
    return backend == "nccl" and model == "contended"


def worthwhile_rates(widest: FloatArray, *, cuts_equally: bool) -> FloatArray:
    """float64[S, S, R]: what each pair could have alone on the rails that serve it, 0 on others.

    widest: what it could have on each rail. All rails serve a pair unless messages are cut equally:
    then the slowest part rules, and the j fastest rails carry j times the rate of the j-th, so that
    only the best j serve it.
    """
    if not cuts_equally or not widest.shape[2]:
        return widest
    falling = -np.sort(-widest, axis=2)
    best = (falling * np.arange(1, widest.shape[2] + 1)).argmax(axis=2)
    slowest = np.take_along_axis(falling, best[:, :, None], axis=2)
    used: FloatArray = np.where(widest >= slowest, slowest, 0.0)
    return used


def with_a_rail(rates: FloatArray) -> FloatArray:
    """Rates float64[..., R] with R at least 1, on which the compiled loops rely: where there is no
    rail, one of rate 0."""
    return rates if rates.shape[-1] else np.zeros((*rates.shape[:-1], 1))
