"""Simulated annealing where transfers never meet and devices run operators in the recorded sort.

The rates stay as they are. A move is simulated from the first operator that it concerns, up to
where it changes nothing any more, or where the step is certainly too long to be taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.annealing.cost import missing_memory
from placewire.optimizer.kernels.annealing.proposals import (
    Guide,
    Neighbourhood,
    choose_kind,
    critical_path,
    propose,
)
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.peak_memory import static_memory
from placewire.optimizer.kernels.simulation.transfers import lending_ceilings
from placewire.optimizer.kernels.tables import Tables

# Moves in one window, and moves after which the critical path is found again.
_IN_WINDOW, _REFRESH = 50, 100
# A simulation can begin and end at every so many operators of the sort.
_SECTION = 32


class TurnSchedule(NamedTuple):
    """finish float64[n] of each operator. Of each section of the sort, float64[sections + 1]: idle
    [.., D], when the devices have run what comes before it; most, the latest finish in it; before,
    after, the latest before its first operator, and from that one on."""

    finish: FloatArray
    idle: FloatArray
    most: FloatArray
    before: FloatArray
    after: FloatArray


class Channels(NamedTuple):
    """setup float64[D, D] seconds and rate float64[D, D] bits per second of a transfer from one
    device to another."""

    setup: FloatArray
    rate: FloatArray


@compiled
def channels_at(tables: Tables, rates: FloatArray) -> Channels:
    """As contention_free has them; rates float64[S, S, R]."""
    setup, rate = tables.path_setup.copy(), tables.path_rate.copy()
    for a in range(len(tables.server)):
        for b in range(len(tables.server)):
            if tables.path_rate[a, b] == 0.0:
                setup[a, b] = tables.setup_seconds
                for r in range(rates.shape[2]):
                    rate[a, b] += rates[tables.server[a], tables.server[b], r]
    return Channels(setup, rate)


@compiled
def arrival(
    tables: Tables, channels: Channels, device: IntArray, e: int, made: float, a: int
) -> float:
    """When tensor e, made at `made` seconds, is on device a."""
    b = device[tables.producer[e]]
    if b == a or tables.bits[e] == 0.0:
        return made
    if channels.rate[b, a] == 0.0:
        return np.inf
    return float(made + (channels.setup[b, a] + tables.bits[e] / channels.rate[b, a]))


@compiled
def new_turns(n: int, devices: int) -> TurnSchedule:
    count = (n + _SECTION - 1) // _SECTION + 1
    nothing = np.zeros(count)
    return TurnSchedule(
        np.zeros(n), np.zeros((count, devices)), nothing, nothing.copy(), nothing.copy()
    )


@compiled
def last_readers(tables: Tables) -> tuple[IntArray, IntArray]:
    """(the place of each operator in the sort, the place of the last one that reads what it
    makes), int64[n] each; -1 where there is none."""
    n = len(tables.topological)
    place, last = np.empty(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    for p in range(n):
        place[tables.topological[p]] = p
    for i in range(n):
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                last[i] = max(last[i], place[tables.consumers[k]])
    return place, last


@compiled
def run_turns(
    tables: Tables,
    channels: Channels,
    place: IntArray,
    last: IntArray,
    tails: FloatArray,
    device: IntArray,
    old: TurnSchedule,
    new: TurnSchedule,
    first: int,
    concerned: int,
    limit: float,
) -> tuple[float, int]:
    """Simulates from section `first` on; returns (the step's seconds, the section before which that
    ended). Sections from there on are as in `old`. The step is inf where an operator that was run
    says that it is longer than limit.

    concerned: the place of the last operator that moved, or that reads what one of these makes.
    """
    n, devices = len(device), len(tables.server)
    sections = len(old.most) - 1
    for d in range(devices):
        new.idle[first, d] = old.idle[first, d]
    longest, begin = old.before[first], first * _SECTION
    for section in range(first, sections):
        low, high = section * _SECTION, min(n, (section + 1) * _SECTION)
        if low > concerned:
            alike = True
            for d in range(devices):
                alike = alike and new.idle[section, d] == old.idle[section, d]
            if alike:
                return max(longest, old.after[section]), section
        for d in range(devices):
            new.idle[section + 1, d] = new.idle[section, d]
        most = 0.0
        for p in range(low, high):
            i = tables.topological[p]
            a = device[i]
            at = new.idle[section + 1, a]
            for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
                e = tables.inputs[k]
                j = tables.producer[e]
                made = new.finish[j] if place[j] >= begin else old.finish[j]
                at = max(at, arrival(tables, channels, device, e, made, a))
            end = at + tables.seconds[i, a]
            if end + tails[i] > limit:
                return np.inf, section
            if end != old.finish[i]:
                concerned = max(concerned, last[i])
            new.finish[i] = end
            new.idle[section + 1, a] = end
            most = max(most, end)
        new.most[section] = most
        longest = max(longest, most)
    return longest, sections


@compiled
def keep_turns(
    tables: Tables, old: TurnSchedule, new: TurnSchedule, first: int, until: int
) -> None:
    """Makes sections first..until - 1 of `old` those of `new`."""
    sections = len(old.most) - 1
    for p in range(first * _SECTION, min(len(old.finish), until * _SECTION)):
        old.finish[tables.topological[p]] = new.finish[tables.topological[p]]
    for section in range(first, until):
        old.most[section] = new.most[section]
        for d in range(old.idle.shape[1]):
            old.idle[section + 1, d] = new.idle[section + 1, d]
    for section in range(first, sections):
        old.before[section + 1] = max(old.before[section], old.most[section])
    for section in range(until - 1, -1, -1):
        old.after[section] = max(old.after[section + 1], old.most[section])


@compiled
def guide_at(
    tables: Tables, channels: Channels, place: IntArray, device: IntArray, finish: FloatArray
) -> Guide:
    """The operators in the recorded sort, which is nearly that of their starts."""
    start, there = np.empty(len(device)), np.empty(len(tables.inputs))
    for i in range(len(device)):
        start[i] = finish[i] - tables.seconds[i, device[i]]
        for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            e = tables.inputs[k]
            made = finish[tables.producer[e]]
            there[k] = arrival(tables, channels, device, e, made, device[i])
    path, reason = critical_path(tables, device, tables.topological, start, finish, there)
    return Guide(tables.topological, place, path, reason)


@compiled
def anneal_turns(
    tables: Tables, rates: FloatArray, check_memory: bool, reference_seconds: float,
    hood: Neighbourhood, tails: FloatArray, device: IntArray, best_device: IntArray, moves: int,
    hot: float, cold: float, seed: int, weights: FloatArray, tries: FloatArray, wins: FloatArray,
) -> tuple[float, float]:  # fmt: skip
    """Anneals devices as anneal_whole.anneal does, where priorities decide nothing, with fixed
    rates float64[S, S, R]; where the sharing lends, these are what each pair is promised.

    tails float64[n]: the shortest time from an operator's finish to the step's end.
    """
    np.random.seed(seed)
    n = len(device)
    if tables.lends:
        rates = lending_ceilings(
            tables.nic_rates, tables.limit_groups, tables.limit_capacity, rates
        )
    channels = channels_at(tables, rates)
    place, last = last_readers(tables)
    old, new = new_turns(n, len(tables.server)), new_turns(n, len(tables.server))
    op, to, was = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    stamp, no_priority = np.full(n, -1, dtype=np.int64), np.zeros(n)
    sections = len(old.most) - 1
    current, _ = run_turns(tables, channels, place, last, tails, device, old, new, 0, n, np.inf)
    keep_turns(tables, old, new, 0, sections)
    held, charge = static_memory(tables, device), 10.0 * reference_seconds
    excess = missing_memory(tables, held) if check_memory else 0.0
    current += charge * excess
    best, best_excess = current, excess
    guide = guide_at(tables, channels, place, device, old.finish)
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
            guide = guide_at(tables, channels, place, device, old.finish)
            since = 0
        kind = choose_kind(weights)
        count, _ = propose(
            tables, hood, guide, device, no_priority, kind, low, high, op, to, stamp, move
        )
        tries[kind] += 1.0
        if count == 0 or to[0] < 0:
            continue
        limit = current - temperature * np.log(1.0 - np.random.random())
        first, concerned = n, 0
        for k in range(count):
            i = op[k]
            was[k] = device[i]
            device[i] = to[k]
            held[was[k]] -= tables.static_bytes[i]
            held[to[k]] += tables.static_bytes[i]
            first = min(first, place[i])
            concerned = max(concerned, place[i], last[i])
        excess = missing_memory(tables, held) if check_memory else 0.0
        tried, until = np.inf, 0
        begin = first // _SECTION
        if charge * excess <= limit:
            tried, until = run_turns(
                tables, channels, place, last, tails, device, old, new, begin, concerned,
                limit - charge * excess,
            )  # fmt: skip
            tried += charge * excess
        if tried <= limit:
            if tried < current:
                wins[kind] += 1.0
            current = tried
            keep_turns(tables, old, new, begin, until)
            since += 1
            if excess < best_excess or (excess == best_excess and tried < best):
                best, best_excess = tried, excess
                for j in range(n):
                    best_device[j] = device[j]
            continue
        for k in range(count):
            i = op[k]
            held[to[k]] -= tables.static_bytes[i]
            held[was[k]] += tables.static_bytes[i]
            device[i] = was[k]
    return best, best_excess
