"""What one transfer takes: paths past the NICs, and how a message is cut over the rails.

D devices, S servers, R rails; all rates are payload bits per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import Backend, Model

# Below this size a message is not cut over several rails: it travels on one.
CUT_THRESHOLD_BYTES = 64 * 1024


@dataclass(frozen=True)
class Paths:
    """float64[D, D] each, by source and destination device: set-up seconds, and bits per second,
    which are 0 where messages travel over the rails."""

    setup: FloatArray
    rate: FloatArray


def paths_past_the_nics(cluster: Cluster, model: Model) -> Paths:
    """What joins two devices past the NICs: a link of their own, or their server.

    Under `msr` every pair goes through host memory: an accelerator pays the tensor's transfer to
    write it, and to read it; a CPU pays nothing (rate inf).
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
    """Of a transfer that meets no other, at these rates float64[S, S, R] where it travels over
    rails."""
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
    """Whether a message is cut into equal parts; the thesis' model knows one rate per pair."""
    return backend == "nccl" and model == "contended"


def worthwhile_rates(widest: FloatArray, *, cuts_equally: bool) -> FloatArray:
    """float64[S, S, R]: what each pair could have alone on the rails that serve it, from what it
    could have on all of them.

    These are all rails, except where messages are cut equally: there the slowest part rules, and
    the j fastest rails carry j times the j-th's rate, so that those beyond the best j are left out
    (0).
    """
    if not cuts_equally or not widest.shape[2]:
        return widest
    falling = -np.sort(-widest, axis=2)
    best = (falling * np.arange(1, widest.shape[2] + 1)).argmax(axis=2)
    slowest = np.take_along_axis(falling, best[:, :, None], axis=2)
    used: FloatArray = np.where(widest >= slowest, slowest, 0.0)
    return used


def with_a_rail(rates: FloatArray) -> FloatArray:
    """Rates float64[..., R] with R at least 1, as the compiled loops count on; a rail of rate 0
    carries nothing."""
    return rates if rates.shape[-1] else np.zeros((*rates.shape[:-1], 1))
