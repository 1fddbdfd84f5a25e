"""The one allocator of bandwidth: rates per (source server, destination server, rail).

For a placement and its orders the step time is a longest path whose transfers take p0 + bits * r
with r = 1 / b: convex in b. The hyperbola is replaced by tangents from below, added where the
answer needs them, so that each round is a linear program (rate_program.py).
"""

from __future__ import annotations

import math

import numpy as np

from placewire.optimizer.graph.operator_graph import FloatArray, IntArray
from placewire.optimizer.network.sharing import (
    cuts_equally,
    limits_receiving,
    paths,
    worthwhile_rates,
)
from placewire.optimizer.problem import FLOOR_FRACTION, Problem
from placewire.optimizer.rates.rate_program import best_rates
from placewire.optimizer.simulation.simulate import Order, Timeline, simulate

# With more messages than this the linear programs take minutes; rates by volume are used alone.
_MOST_MESSAGES = 2_000


def used_pairs(problem: Problem, device: IntArray) -> list[tuple[int, int]]:
    """Server pairs that exchange messages over rails, in order."""
    server = problem.cluster.server_of_device
    source, target, tensor = problem.graph.edges
    _, past_the_nics = paths(problem)
    crossing = past_the_nics[device[source], device[target]] == 0
    crossing &= problem.graph.tensor_bytes[tensor] > 0
    ends = np.stack([server[device[source]], server[device[target]]], axis=1)
    return [(int(s), int(t)) for s, t in np.unique(ends[crossing], axis=0)]


def floor_rates(problem: Problem, used: list[tuple[int, int]]) -> FloatArray:
    """float64[S, S, R]: what every used pair and its reverse direction must keep on the rails that
    serve them.

    The reverse direction carries acknowledgements. Where many servers talk the floors together take
    at most half of a NIC.
    """
    worthwhile = worthwhile_rates(problem)
    fraction = min(FLOOR_FRACTION, 0.5 / max(len(worthwhile) - 1, 1))
    floors = np.zeros_like(worthwhile)
    for s, t in used:
        floors[s, t] = fraction * worthwhile[s, t]
        floors[t, s] = fraction * worthwhile[t, s]
    return floors


def starting_rates(problem: Problem, device: IntArray) -> FloatArray:
    """float64[S, S, R]: admissible rates by volume, without a program."""
    from placewire.optimizer.kernels.simulation.network import device_traffic, proportional_rates
    from placewire.optimizer.kernels.tables import make_tables

    tables = make_tables(problem)
    rates = proportional_rates(tables, device_traffic(tables, device))
    return rates[:, :, : len(problem.cluster.rails)]


def equal_rates(problem: Problem, used: list[tuple[int, int]]) -> FloatArray:
    """float64[S, S, R]: each NIC split equally over the pairs that use it, floors kept."""
    floors = floor_rates(problem, used)
    mine = np.zeros_like(floors, dtype=bool)
    for s, t in used:
        mine[s, t] = floors[s, t] > 0
    left = problem.usable_nic_rates
    transmit = (left - floors.sum(axis=1)) / np.maximum(mine.sum(axis=1), 1)
    receive = (left - floors.sum(axis=0)) / np.maximum(mine.sum(axis=0), 1)
    share = np.minimum(transmit[:, None, :], receive[None, :, :])
    return _levelled(problem, np.where(mine, floors + share, floors))


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
    reached = worthwhile_rates(problem).sum(axis=2)
    if not used or not all(reached[pair] > 0 for pair in used):
        return np.zeros((servers, servers, rails))
    floors = floor_rates(problem, used)

    def score(rates: FloatArray) -> tuple[float, Timeline]:
        timeline = simulate(problem, device, order=order, rates=rates)
        return timeline.step_seconds, timeline

    starts = [starting_rates(problem, device), equal_rates(problem, used)]
    starts += [incumbent] if incumbent is not None else []
    best = min(starts, key=lambda rates: score(rates)[0])
    best_step, timeline = score(best)
    # A small message's rail is its pair's fastest, which the program may change: hence two passes.
    for _ in range(2 if len(timeline.messages) <= _MOST_MESSAGES else 0):
        solved = best_rates(problem, device, timeline, best, floors, until)
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
    """The same rates, scaled up pair by pair as far as both ends' NICs allow."""
    nics, widest = problem.usable_nic_rates, worthwhile_rates(problem)
    for _ in range(4):
        with np.errstate(divide="ignore", invalid="ignore"):
            transmit = np.where(rates.sum(axis=1) > 0, nics / rates.sum(axis=1), 1.0)
            receive = np.where(rates.sum(axis=0) > 0, nics / rates.sum(axis=0), 1.0)
        if not limits_receiving(problem):
            receive = np.full_like(receive, np.inf)
        factor = np.minimum(transmit[:, None, :], receive[None, :, :])
        rates = np.minimum(rates * np.maximum(factor, 1.0), widest)
    return _levelled(problem, rates)


def _levelled(problem: Problem, rates: FloatArray) -> FloatArray:
    """Where messages are cut equally, a pair's faster rails give up what its slowest cannot use."""
    if cuts_equally(problem):
        from placewire.optimizer.kernels.simulation.network import level_rails

        rates = rates.copy()
        level_rails(rates)
    return rates
