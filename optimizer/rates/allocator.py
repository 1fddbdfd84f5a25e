"""The one allocator of bandwidth: rates per (source server, destination server, rail).

For a placement and its orders the step time is a longest path whose transfers take p0 + bits * r
with r = 1 / b: convex in b. The hyperbola is replaced by tangents from below, added where the
answer needs them, so that each round is a linear program (rate_program.py).
"""

from __future__ import annotations

import math

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.simulation.transfers import (
    device_traffic,
    level_rails,
    rates_by_volume,
)
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.network.nics import LEAST_PAIR_FRACTION, nic_limits
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.rate_program import best_rates
from placewire.optimizer.simulation.simulate import Order, Timeline, simulate

# With more messages than this the linear programs take minutes; rates by volume are used alone.
_MOST_MESSAGES = 2_000


def used_pairs(problem: Problem, device: IntArray) -> list[tuple[int, int]]:
    """Server pairs that exchange messages over rails, in order."""
    server = problem.cluster.server_of_device
    source, target, tensor = problem.graph.edges
    crossing = problem.paths.rate[device[source], device[target]] == 0
    crossing &= problem.graph.tensor_bytes[tensor] > 0
    ends = np.stack([server[device[source]], server[device[target]]], axis=1)
    return [(int(s), int(t)) for s, t in np.unique(ends[crossing], axis=0)]


def least_rates(problem: Problem, used: list[tuple[int, int]]) -> FloatArray:
    """float64[S, S, R]: what every used pair and its reverse direction must keep on the rails that
    serve them.

    The reverse direction carries acknowledgements. Where many servers talk these rates together
    take at most half of a NIC.
    """
    worthwhile = problem.worthwhile_rates
    fraction = min(LEAST_PAIR_FRACTION, 0.5 / max(len(worthwhile) - 1, 1))
    least = np.zeros_like(worthwhile)
    for s, t in used:
        least[s, t] = fraction * worthwhile[s, t]
        least[t, s] = fraction * worthwhile[t, s]
    return least


def starting_rates(problem: Problem, device: IntArray) -> FloatArray:
    """float64[S, S, R]: admissible rates by volume, without a program."""
    tables = tables_of(problem)
    rates = rates_by_volume(tables, device_traffic(tables, device))
    return rates[:, :, : len(problem.cluster.rails)]


def equal_rates(problem: Problem, used: list[tuple[int, int]]) -> FloatArray:
    """float64[S, S, R]: what is left of each NIC above the least rates, split equally
    over the pairs that use it."""
    least = least_rates(problem, used)
    mine = np.zeros_like(least, dtype=bool)
    for s, t in used:
        mine[s, t] = least[s, t] > 0
    limits = nic_limits(problem.usable_nic_rates)
    left = limits.capacity - limits.load(least)
    share = limits.least(left / np.maximum(limits.load(mine), 1))
    return _levelled(problem, np.where(mine, least + share, least))


def allocate(
    problem: Problem,
    device: IntArray,
    order: Order,
    incumbent: FloatArray | None = None,
    until: float = math.inf,
) -> FloatArray:
    """The best rates found for operators on device int64[n] run in this order, float64[S, S, R],
    before time.monotonic() is `until`.

    Never worse in simulated step time than rates by volume, than the used pairs' equal rates, or
    than the incumbent if one is given. Under guarantee sharing these are the minimums: the program
    decides as if they were caps, and its answers are scored with what may be borrowed. All zero
    where no two servers talk, and where two talk that have no rail in common.
    """
    used = used_pairs(problem, device)
    servers, rails = problem.cluster.nic_rates.shape
    reached = problem.worthwhile_rates.sum(axis=2)
    if not used or not all(reached[pair] > 0 for pair in used):
        return np.zeros((servers, servers, rails))
    least = least_rates(problem, used)

    def score(rates: FloatArray) -> tuple[float, Timeline]:
        timeline = simulate(problem, device, order=order, rates=rates)
        return timeline.step_seconds, timeline

    starts = [starting_rates(problem, device), equal_rates(problem, used)]
    starts += [incumbent] if incumbent is not None else []
    best = min(starts, key=lambda rates: score(rates)[0])
    best_step, timeline = score(best)
    # A small message's rail is its pair's fastest, which the program may change: hence two passes.
    for _ in range(2 if len(timeline.messages) <= _MOST_MESSAGES else 0):
        solved = best_rates(problem, device, timeline, best, least, until)
        if solved is None:
            break
        step_before = best_step
        for rates in (solved, spend_leftover(problem, solved)):
            step, candidate = score(rates)
            if step <= best_step:
                best, best_step, timeline = rates, step, candidate
        if best_step > step_before * (1 - 1e-4):
            break
    return best


def spend_leftover(problem: Problem, rates: FloatArray) -> FloatArray:
    """The same rates, scaled up pair by pair as far as the NICs allow."""
    for _ in range(4):
        grown = rates * np.maximum(problem.limits.room(rates), 1.0)
        rates = np.minimum(grown, problem.worthwhile_rates)
    return _levelled(problem, rates)


def _levelled(problem: Problem, rates: FloatArray) -> FloatArray:
    """Where messages are cut equally, a pair's faster rails give up what its slowest cannot use."""
    if problem.cuts_equally:
        rates = rates.copy()
        level_rails(rates)
    return rates
