"""What each sharing makes of a decision's rates: which of them cut messages and pace transfers.

strict     the decision itself: each pair's rate per rail is its cap
even       each NIC's usable rate split evenly over the other servers
guarantee  the decision is each pair's minimum; what paces it at most is the minimum with what it
           may borrow, fixed beforehand so that no receiver can be oversubscribed
job        no per-pair rates: messages are cut by what each pair could have alone
unshaped   the same
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.cluster import even_rates, widest_rates
from placewire.optimizer.graph.operator_graph import FloatArray
from placewire.optimizer.problem import Problem


def decides_rates(problem: Problem) -> bool:
    """Whether rates per server pair are part of a solution."""
    return problem.sharing in ("strict", "guarantee") and problem.model != "msr"


def limits_receiving(problem: Problem) -> bool:
    """Whether rates are limited at receivers too: not in the thesis' own model (3.7)."""
    return problem.model != "thesis" or problem.sharing == "guarantee"


def rates_in_force(problem: Problem, rates: FloatArray | None) -> FloatArray:
    """float64[S, S, R], R at least 1: what messages are cut by, and what paces them at most.

    rates float64[S, S, R] are the decision where decides_rates(problem), else ignored. All zero
    under the model `msr`, which has no NICs. Raises ValueError where rates are missing.
    """
    usable = problem.usable_nic_rates
    if problem.model == "msr":
        return with_a_rail(np.zeros_like(widest_rates(usable)))
    if problem.sharing == "even":
        return with_a_rail(even_rates(usable))
    if problem.sharing in ("job", "unshaped"):
        return with_a_rail(widest_rates(usable))
    decided = decision(problem, rates)
    if problem.sharing == "strict":
        return decided
    from placewire.optimizer.kernels.simulation.network import ceilings

    return ceilings(np.ascontiguousarray(with_a_rail(usable)), decided)


def decision(problem: Problem, rates: FloatArray | None) -> FloatArray:
    """The decided rates as contiguous float64[S, S, R], R at least 1.

    Raises ValueError where they are missing or of another cluster's shape."""
    if rates is None:
        raise ValueError(f"{problem.sharing} sharing needs rates, float64[servers, servers, rails]")
    servers, rails = problem.cluster.nic_rates.shape
    if rates.shape[:2] != (servers, servers) or rates.shape[2] not in (rails, max(rails, 1)):
        raise ValueError(f"rates have shape {rates.shape}, expected {(servers, servers, rails)}")
    return with_a_rail(np.ascontiguousarray(rates, dtype=np.float64))


def with_a_rail(rates: FloatArray) -> FloatArray:
    """Rates float64[..., R] with R at least 1, as the compiled loops count on; a rail of rate 0
    carries nothing."""
    return rates if rates.shape[-1] else np.zeros((*rates.shape[:-1], 1))


def cuts_equally(problem: Problem) -> bool:
    """Whether a message is cut into equal parts; the thesis' model knows one rate per pair."""
    return problem.backend == "nccl" and problem.model == "contended"


def worthwhile_rates(problem: Problem) -> FloatArray:
    """float64[S, S, R]: what each pair could have alone on the rails that serve it.

    All rails, except where messages are cut equally: there the slowest part rules, and the j
    fastest rails carry j times the j-th's rate, so that those beyond the best j are left out (0).
    """
    widest = widest_rates(problem.usable_nic_rates)
    if not cuts_equally(problem) or not widest.shape[2]:
        return widest
    falling = -np.sort(-widest, axis=2)
    best = (falling * np.arange(1, widest.shape[2] + 1)).argmax(axis=2)
    slowest = np.take_along_axis(falling, best[:, :, None], axis=2)
    used: FloatArray = np.where(widest >= slowest, slowest, 0.0)
    return used


def paths(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """(set-up seconds, bits per second) float64[D, D] of what joins two devices past the NICs:
    their link, or inside one server its own path; rate 0 where messages travel over rails.

    Under `msr` every pair goes through host memory: an accelerator pays the tensor's transfer to
    write it, and to read it; a CPU pays nothing (rate inf).
    """
    cluster = problem.cluster
    server = cluster.server_of_device
    if problem.model == "msr":
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
    return setup, rate


def alone(problem: Problem, rates: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(set-up seconds, bits per second) float64[D, D] of a transfer that meets no other, at these
    rates float64[S, S, R] where it travels over rails."""
    setup, rate = paths(problem)
    server = problem.cluster.server_of_device
    total = rates.sum(axis=2)
    if cuts_equally(problem):
        slowest = np.where(rates > 0, rates, np.inf).min(axis=2, initial=np.inf)
        total = np.where(total > 0, (rates > 0).sum(axis=2) * np.minimum(slowest, total), 0.0)
    over_rails = rate == 0
    rate = np.where(over_rails, total[server[:, None], server[None, :]], rate)
    setup = np.where(over_rails, problem.cluster.setup_latency_seconds, setup)
    return setup, rate
