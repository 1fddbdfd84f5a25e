"""Allocates bandwidth for a placement: a rate per (source server, destination server, rail).

For a placement and its orders the step time is a longest path, on which a transfer takes p0 + bits
* r with r = 1 / b, which is convex in b. rate_program.py replaces the hyperbola by tangents from
below and adds more where the answer needs them, so that each round is a linear program.
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
from placewire.optimizer.network.nics import network_limits
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.rate_program import best_rates
from placewire.optimizer.simulation.simulate import Order, Timeline, simulate

# With more messages than this the linear programs take minutes and are left out.
_MOST_MESSAGES = 2_000


def used_pairs(problem: Problem, device: IntArray) -> list[tuple[int, int]]:
    """The pairs (source, destination) of servers that send messages over rails, sorted."""
    server = problem.cluster.server_of_device
    source, target, tensor = problem.graph.edges
    crossing = problem.paths.rate[device[source], device[target]] == 0
    crossing &= problem.graph.tensor_bytes[tensor] > 0
    ends = np.stack([server[device[source]], server[device[target]]], axis=1)
    return [(int(s), int(t)) for s, t in np.unique(ends[crossing], axis=0)]


def least_rates(problem: Problem, used: list[tuple[int, int]]) -> FloatArray:
    """float64[S, S, R]: the rates that used pairs keep at least on the rails that serve them, in
    both directions, because the reverse direction carries acknowledgements."""
    least = np.zeros_like(problem.least_rates)
    for s, t in used:
        least[s, t] = problem.least_rates[s, t]
        least[t, s] = problem.least_rates[t, s]
    return least


def starting_rates(problem: Problem, device: IntArray) -> FloatArray:
    """float64[S, S, R]: admissible rates, by the rule of rates_by_volume instead of a program."""
    tables = tables_of(problem)
    rates = rates_by_volume(tables, device_traffic(tables, device))
    return rates[:, :, : len(problem.cluster.rails)]


def equal_rates(problem: Problem, used: list[tuple[int, int]]) -> FloatArray:
    """float64[S, S, R]: the least rates, and what is left of each NIC and uplink split equally over
    the pairs that use it."""
    least = least_rates(problem, used)
    mine = np.zeros_like(least, dtype=bool)
    for s, t in used:
        mine[s, t] = least[s, t] > 0
    limits = network_limits(problem.usable)
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
    """float64[S, S, R]: the best rates found for operators on device int64[n] run in this order,
    before time.monotonic() is `until`.

    Their simulated step is never longer than under rates by volume, under equal rates, or under the
    incumbent if one is given. Under guarantee sharing the rates are the minimums: the program
    treats them as caps, but its answers are scored with what may be borrowed. All rates are 0 where
    no two servers talk, or where two that talk have no rail in common.
    """
    used = used_pairs(problem, device)
    servers, rails = problem.cluster.nic_rates.shape
    reached = problem.worthwhile_rates.sum(axis=2)
    if not used or not all(reached[pair] > 0 for pair in used):
        return np.zeros((servers, servers, rails))
    least = least_rates(problem, used)

    def under(rates: FloatArray) -> Timeline:
        return simulate(problem, device, order=order, rates=rates)

    starts = [starting_rates(problem, device), equal_rates(problem, used)]
    starts += [incumbent] if incumbent is not None else []
    best = min(starts, key=lambda rates: under(rates).step_seconds)
    timeline = under(best)
    # A small message takes its pair's fastest rail. The program holds that rail fixed but may make
    # another one the fastest: hence two passes.
    for _ in range(2 if len(timeline.messages) <= _MOST_MESSAGES else 0):
        solved = best_rates(problem, device, timeline, best, least, until)
        if solved is None:
            break
        step_before = timeline.step_seconds
        for rates in (solved, spend_leftover(problem, solved)):
            candidate = under(rates)
            if candidate.step_seconds <= timeline.step_seconds:
                best, timeline = rates, candidate
        if timeline.step_seconds > step_before * (1 - 1e-4):
            break
    return best


def spend_leftover(problem: Problem, rates: FloatArray) -> FloatArray:
    """The rates, raised pair by pair as far as the NICs and uplinks allow."""
    for _ in range(4):
        grown = rates * np.maximum(problem.limits.room(rates), 1.0)
        rates = np.minimum(grown, problem.worthwhile_rates)
    return _levelled(problem, rates)


def _levelled(problem: Problem, rates: FloatArray) -> FloatArray:
    """The rates; where messages are cut equally, each pair has that of its slowest rail on all."""
    if problem.cuts_equally:
        rates = rates.copy()
        level_rails(rates)
    return rates
