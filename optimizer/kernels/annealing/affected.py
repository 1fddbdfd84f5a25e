"""From where on a move can change a schedule: the first event that may turn out differently."""

from __future__ import annotations

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.first_come import MarkedSchedule
from placewire.optimizer.kernels.tables import Tables

# Of so many operators of a move that receive nothing it is looked up when they could start first;
# of the others it is taken to be as soon as they are ready.
_LOOKED_AT = 8


@compiled
def first_event_from(old: MarkedSchedule, time: float) -> int:
    """The first event at or after a time; n where there is none."""
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
    """The first event that is no longer sure where operator i waits on device d from time `at` on
    with priority `urgent`: d would start it in a gap, or instead of another. device: as scheduled;
    n where only the end of the schedule is not sure."""
    n = len(old.order)
    idle, k = 0.0, n
    first = first_event_from(old, at)
    # What the device did before decides when it is free at `at`: walk back to its last event.
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
    """The first event that may change by a proposed move; device and priority as scheduled."""
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
            continue  # nothing of it can be earlier than its producer
        if m >= _LOOKED_AT:
            first = min(first, first_event_from(old, at))
            continue
        d, level = (device[i], urgent) if to[m] < 0 else (to[m], priority[i])
        first = min(first, first_chance(old, device, priority, i, d, level, at))
    return first
