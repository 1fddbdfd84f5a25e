"""Finds the first event of a schedule that a move of the search can change."""

from __future__ import annotations

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.first_come import MarkedSchedule
from placewire.optimizer.kernels.tables import Tables

# For so many operators of a move that receive nothing from another device, first_chance looks up
# when they could start; any further ones are taken to start as soon as their inputs are there.
_LOOKED_AT = 8


@compiled
def first_event_from(old: MarkedSchedule, time: float) -> int:
    """Returns the first event that starts at or after a time; n where there is none."""
    low, high = 0, len(old.order)
    while low < high:
        middle = (low + high) // 2
        if old.start[old.order[middle]] < time:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def first_chance(
    old: MarkedSchedule,
    device: IntArray,
    priority: FloatArray,
    i: int,
    d: int,
    urgent: float,
    at: float,
) -> int:
    """Returns the first event that is no longer sure if operator i waits on device d from time `at`
    on with priority `urgent`: d could start i there, in a gap or instead of another operator. n
    where nothing but the end of the schedule can change. device: as scheduled, before the move."""
    n = len(old.order)
    idle, k = 0.0, n
    first = first_event_from(old, at)
    # d is free from the end of its last event before `at`: walk back to that event.
    for back in range(first - 1, -1, -1):
        j = old.order[back]
        if device[j] == d and j != i:
            idle = old.finish[j]
            break
    for k in range(first, n):
        j = old.order[k]
        if j == i:
            break  # later events are not sure in any case
        if old.start[j] >= max(idle, at) and device[j] != d:
            return k
        if device[j] == d:
            if old.start[j] > max(idle, at):
                return k
            if urgent > priority[j] or (urgent == priority[j] and i < j):
                return k
            idle = old.finish[j]
    return n


@compiled
def first_affected(
    tables: Tables,
    old: MarkedSchedule,
    device: IntArray,
    priority: FloatArray,
    op: IntArray,
    to: IntArray,
    count: int,
    urgent: float,
) -> int:
    """Returns the first event that a proposed move may change.

    The move is op[:count], to and urgent, as proposals.propose returns it; device and priority are
    those of the schedule, before the move.
    """
    first = len(device)
    for m in range(count):
        if first == 0:
            break
        i = op[m]
        first = min(first, old.place[i])
        at, received = 0.0, False
        for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            e = tables.inputs[k]
            at = max(at, old.input_at[k])
            if to[m] >= 0 and tables.bits[e] > 0.0:
                received = True
                first = min(first, old.place[tables.producer[e]])
        if received:
            continue  # i cannot start before its producers, whose events are counted already
        if m >= _LOOKED_AT:
            first = min(first, first_event_from(old, at))
            continue
        d, level = (device[i], urgent) if to[m] < 0 else (to[m], priority[i])
        first = min(first, first_chance(old, device, priority, i, d, level, at))
    return first
