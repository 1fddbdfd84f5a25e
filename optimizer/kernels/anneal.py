"""Simulated annealing over devices and priorities, compiled whole."""

# ruff: noqa: PLR0912

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.kernels.compiled import compiled
from optimizer.kernels.fluid import fluid
from optimizer.kernels.memory import peak_memory, static_memory
from optimizer.kernels.network import (
    ceilings,
    channel_rates,
    device_traffic,
    proportional_rates,
)
from optimizer.kernels.schedule import by_priority, contention_free
from optimizer.kernels.tables import CHANNELS, FREE, Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Neighbourhood(NamedTuple):
    """What may move together: CSR, move k takes members[start[k]:start[k + 1]] (operators).

    Whole co-location groups only, so that no move can separate one.
    """

    start: IntArray
    members: IntArray


class Scoring(NamedTuple):
    """How a state is scored, beside what Tables say of the model and the sharing.

    proportional: rates by the rule of network.proportional_rates; else `rates` float64[S, S, R],
    the decision where there is one (sharing.decides_rates), and what is in force where not.
    check_memory: False where everything fits on every device. reference_seconds: what a state is
    charged for exceeding a device's memory by a tenth, so that the search may cross such states.
    """

    proportional: bool
    check_memory: bool
    reference_seconds: float
    rates: FloatArray


@compiled
def cost(
    tables: Tables, scoring: Scoring, device: IntArray, priority: FloatArray
) -> tuple[float, float]:
    """(step seconds and the charge for memory, inf where nothing runs; excess: the sum over devices
    of what is missing, as a fraction of the device's memory)."""
    n, m = len(device), len(tables.producer)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(m)
    position = np.empty(n, dtype=np.int64)
    step = 0.0
    traffic = np.empty((0, 0))
    if scoring.proportional or tables.discipline == CHANNELS:
        traffic = device_traffic(tables, device)
    rates = proportional_rates(tables, traffic) if scoring.proportional else scoring.rates
    minimums = rates
    if tables.lends:
        rates = ceilings(tables.nic_rates, minimums)
    if tables.discipline == FREE:
        step = contention_free(
            tables, device, tables.topological, rates, start, finish, sent, position
        )
    elif tables.discipline == CHANNELS:
        channels = channel_rates(tables, traffic, rates)
        step = by_priority(tables, device, priority, channels, start, finish, sent, position)
    else:
        edges, rails = len(tables.consumers), tables.nic_rates.shape[1]
        messages = fluid(
            tables, rates, minimums, device, priority, np.empty(0, dtype=np.int64),
            start, finish, sent, position,
            np.empty(edges, dtype=np.int64), np.empty(edges, dtype=np.int64),
            np.empty((edges, rails)), np.empty((edges, rails)), np.empty((0, 0)),
        )  # fmt: skip
        if messages < 0:
            return np.inf, 0.0
        for i in range(n):
            step = max(step, finish[i])
    if not scoring.check_memory or step == np.inf:
        return step, 0.0
    if tables.discipline == FREE:
        peak = static_memory(tables, device)
    else:
        peak = peak_memory(tables, device, position, start, sent)
    excess = 0.0
    for d in range(len(peak)):
        if peak[d] > tables.memory_bytes[d]:
            excess += (peak[d] - tables.memory_bytes[d]) / max(tables.memory_bytes[d], 1.0)
    return step + 10.0 * excess * scoring.reference_seconds, excess


@compiled
def neighbour_device(tables: Tables, device: IntArray, i: int) -> int:
    """The device of a random producer or consumer of operator i."""
    inputs = tables.inputs_start[i + 1] - tables.inputs_start[i]
    outputs = tables.outputs_start[i + 1] - tables.outputs_start[i]
    if inputs + outputs == 0:
        return np.random.randint(len(tables.server))
    pick = np.random.randint(inputs + outputs)
    if pick < inputs:
        return int(device[tables.producer[tables.inputs[tables.inputs_start[i] + pick]]])
    e = tables.outputs[tables.outputs_start[i] + pick - inputs]
    low, high = tables.consumers_start[e], tables.consumers_start[e + 1]
    if low == high:
        return np.random.randint(len(tables.server))
    return int(device[tables.consumers[np.random.randint(low, high)]])


@compiled
def anneal(
    tables: Tables,
    scoring: Scoring,
    neighbourhood: Neighbourhood,
    device: IntArray,
    priority: FloatArray,
    best_device: IntArray,
    best_priority: FloatArray,
    current: float,
    best: float,
    best_excess: float,
    moves: int,
    hot: float,
    cold: float,
    seed: int,
) -> tuple[float, float, float]:
    """`moves` tries, cooling from temperature hot to cold (seconds). Works on device and priority
    in place, keeps the best seen (less excess first, then less cost) in best_device and
    best_priority; returns (current cost, best cost, best excess)."""
    np.random.seed(seed)
    n, devices = len(device), len(tables.server)
    sets = len(neighbourhood.start) - 1
    before = np.empty(n, dtype=np.int64)
    for move in range(moves):
        temperature = hot * (cold / hot) ** (move / moves)
        low, high, i = 0, 0, 0
        was = 0.0
        if np.random.random() < 0.85:
            k = np.random.randint(sets)
            low, high = neighbourhood.start[k], neighbourhood.start[k + 1]
            i = neighbourhood.members[np.random.randint(low, high)]
            if np.random.random() < 0.6:
                target = neighbour_device(tables, device, i)
            else:
                target = np.random.randint(devices)
            changed = False
            for p in range(low, high):
                j = neighbourhood.members[p]
                before[p - low] = device[j]
                changed = changed or device[j] != target
                device[j] = target
            if not changed:
                continue
        else:
            i, j = np.random.randint(n), np.random.randint(n)
            was = priority[i]
            side = 1.0 if np.random.random() < 0.5 else -1.0
            priority[i] = priority[j] + side * 1e-6 * (abs(priority[j]) + 1e-12)
        tried, excess = cost(tables, scoring, device, priority)
        gain = current - tried
        if gain >= 0.0 or np.random.random() < np.exp(gain / temperature):
            current = tried
            if excess < best_excess or (excess == best_excess and tried < best):
                best, best_excess = tried, excess
                for j in range(n):
                    best_device[j] = device[j]
                    best_priority[j] = priority[j]
        elif high > low:
            for p in range(low, high):
                device[neighbourhood.members[p]] = before[p - low]
        else:
            priority[i] = was
    return current, best, best_excess
