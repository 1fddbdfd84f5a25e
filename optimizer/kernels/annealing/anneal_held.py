"""Simulated annealing while the rates stay as they are: a move is simulated only where it changes
the schedule."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.annealing.affected import first_affected
from placewire.optimizer.kernels.annealing.cost import missing_memory
from placewire.optimizer.kernels.annealing.proposals import (
    Guide,
    Neighbourhood,
    choose_kind,
    critical_path,
    propose,
)
from placewire.optimizer.kernels.annealing.relocation import (
    changed,
    new_occupied,
    relocate,
    touched,
)
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.first_come import MarkedSchedule, run_first_come
from placewire.optimizer.kernels.simulation.marked_schedule import (
    consumer_slots,
    keep,
    new_schedule,
    new_scratch,
    schedule_all,
)
from placewire.optimizer.kernels.simulation.peak_memory import peak_memory
from placewire.optimizer.kernels.simulation.transfers import channel_rates, device_traffic
from placewire.optimizer.kernels.tables import Tables

# Moves after which the critical path is found again, and moves in one window.
_REFRESH = 100
_IN_WINDOW = 50


@compiled
def peak_of(
    tables: Tables,
    slots: IntArray,
    device: IntArray,
    old: MarkedSchedule,
    new: MarkedSchedule,
    begin: int,
    until: int,
) -> FloatArray:
    """float64[D] bytes at the peak of a schedule whose events [begin, until) are those of `new` and
    whose others are those of `old`."""
    n, m = len(device), len(tables.producer)
    start, sent = np.empty(n), np.zeros(m)
    position = np.empty(n, dtype=np.int64)
    done = np.zeros(len(tables.server), dtype=np.int64)
    for q in range(n):
        fresh = begin <= q < until
        i = new.order[q] if fresh else old.order[q]
        start[i] = new.start[i] if fresh else old.start[i]
        position[i] = done[device[i]]
        done[device[i]] += 1
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                if device[tables.consumers[k]] != device[i] and tables.bits[e] > 0.0:
                    at = new.input_at[slots[k]] if fresh else old.input_at[slots[k]]
                    sent[e] = max(sent[e], at)
    return peak_memory(tables, device, position, start, sent)


@compiled
def used_channels(tables: Tables, device: IntArray, rates: FloatArray, alone: bool) -> FloatArray:
    """float64[D, D, R]: the rates of the channels in use. alone: each server has one device; then
    channels that are not in use have their rates as well."""
    devices = len(tables.server)
    traffic = np.ones((devices, devices)) if alone else device_traffic(tables, device)
    return channel_rates(tables, traffic, rates)


@compiled
def anneal_held(
    tables: Tables, rates: FloatArray, check_memory: bool, reference_seconds: float,
    hood: Neighbourhood, tails: FloatArray, device: IntArray, priority: FloatArray,
    best_device: IntArray, best_priority: FloatArray, moves: int, hot: float, cold: float,
    seed: int, weights: FloatArray, tries: FloatArray, wins: FloatArray,
) -> tuple[float, float]:  # fmt: skip
    """Anneals as anneal_whole.anneal does, under list scheduling with fixed rates float64[S, S, R].

    tails float64[n]: the shortest time from an operator's finish to the step's end.
    """
    np.random.seed(seed)
    n, devices, rails = len(device), len(tables.server), rates.shape[2]
    alone = True
    for d in range(1, devices):
        alone = alone and tables.server[d] != tables.server[d - 1]
    slots = consumer_slots(tables)
    old = new_schedule(n, len(tables.inputs), devices, rails)
    new = new_schedule(n, len(tables.inputs), devices, rails)
    scratch = new_scratch(n, devices, rails)
    op, to, was = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    stamp = np.full(n, -1, dtype=np.int64)
    channels = used_channels(tables, device, rates, alone)
    occupied = new_occupied(tables, device)
    lasts, load = occupied.lasts, occupied.load
    current = schedule_all(tables, lasts, slots, device, priority, channels, old, scratch, 0)
    best_excess = 0.0
    if current == np.inf:
        return current, best_excess
    if check_memory:
        best_excess = missing_memory(tables, peak_of(tables, slots, device, old, new, 0, 0))
        current += 10.0 * best_excess * reference_seconds
    best = current
    path, reason = critical_path(tables, device, old.order, old.start, old.finish, old.input_at)
    span = min(n, max(64, n // 24))
    low, high, since = 0, n, 0
    for move in range(moves):
        temperature = hot * (cold / hot) ** (move / moves)
        if move % _IN_WINDOW == 0:
            low, high = 0, n
            if np.random.random() < 0.7:
                low = np.random.randint(n - span + 1)
                high = low + span
        if since > 0 and move % _REFRESH == 0:
            path, reason = critical_path(
                tables, device, old.order, old.start, old.finish, old.input_at
            )
            since = 0
        guide = Guide(old.order, old.place, path, reason)
        kind = choose_kind(weights)
        count, urgent = propose(
            tables, hood, guide, device, priority, kind, low, high, op, to, stamp, move
        )
        tries[kind] += 1.0
        if count == 0:
            continue
        limit = current - temperature * np.log(1.0 - np.random.random())
        first = first_affected(tables, old, device, priority, op, to, count, urgent)
        usual = channels
        level = priority[op[0]]
        unlike, unlike_count, tensors, every = op, count, 0, 0
        if to[0] < 0:
            priority[op[0]] = urgent
        else:
            tensors, every = touched(tables, occupied, op, count, move)
            unlike = occupied.operators
            for k in range(count):
                was[k] = device[op[k]]
            relocate(tables, occupied, device, op, to, count, tensors, every)
            unlike_count = changed(occupied, count, every)
            for k in range(count, unlike_count):
                first = min(first, old.place[unlike[k]])
            if not alone:
                channels = used_channels(tables, device, rates, alone)
                for a in range(devices):
                    for b in range(devices):
                        for r in range(rails):
                            if channels[a, b, r] != usual[a, b, r]:
                                first = 0
        tried, begin, until = run_first_come(
            tables, lasts, device, priority, channels, False, None, None, None, None, None, None,
            slots, tails, old, new, scratch, load, unlike, unlike_count, first, limit, move + 1,
        )  # fmt: skip
        excess = 0.0
        if check_memory and tried < np.inf:
            peak = peak_of(tables, slots, device, old, new, begin, until)
            excess = missing_memory(tables, peak)
            tried += 10.0 * excess * reference_seconds
        if tried <= limit:
            if tried < current:
                wins[kind] += 1.0
            current = tried
            keep(tables, slots, old, new, begin, until)
            since += 1
            if excess < best_excess or (excess == best_excess and tried < best):
                best, best_excess = tried, excess
                for j in range(n):
                    best_device[j] = device[j]
                    best_priority[j] = priority[j]
            continue
        channels = usual
        if to[0] < 0:
            priority[op[0]] = level
        else:
            relocate(tables, occupied, device, op, was, count, tensors, every)
    return best, best_excess
