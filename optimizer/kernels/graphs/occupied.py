"""What certainly occupies the devices and their NICs where the places of operators are known in
part: the least step that has room for it."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.heads import one_machine
from placewire.optimizer.kernels.graphs.places import only_place

# Two times that differ by less than this part of the step are the same.
_ROUNDING = 1e-9


@compiled
def occupied_seconds(
    work: FloatArray,
    unit: IntArray,
    may: BoolArray,
    before: FloatArray,
    after: FloatArray,
    producer: IntArray,
    start: IntArray,
    reader: IntArray,
    crossing: FloatArray,
    sending: FloatArray,
    message: FloatArray,
    wire: FloatArray,
    latency: float,
    step: float,
) -> float:
    """The least step of each device, and of what each transmits and receives, as a machine
    (`one_machine`) of the jobs that are certain; the largest of them. before, after float64[n, D]
    hold in each schedule within the step with operators where may bool[U, D] has them.

    The readers of tensor e are reader[start[e]:start[e + 1]]. Seconds of a tensor, float64[m], as
    in `Messages`: crossing, sending, message, wire. latency: seconds before its first byte leaves.

    A tensor whose maker is on a device, and which a reader is certainly not on, is sent after its
    maker. Where a reader may be there, the shorter of its run and the sending is on the device; a
    tensor and a reader count in one such pair at most.
    A tensor from one certain device to another arrives after its crossing, and before its first
    reader there starts at the latest. Two tensors for which there is no common time of arrival are
    in two messages. So each of some that have none by pairs is in a message of its own, which takes
    its time of both devices.
    """
    n, devices, tensors = len(work), may.shape[1], len(producer)
    place = np.empty(len(may), dtype=np.int64)
    for u in range(len(may)):
        place[u] = only_place(may, u)
    room = n + tensors + 4 * len(reader)
    machine = np.empty(room, dtype=np.int64)
    release, seconds, delivery = np.empty(room), np.empty(room), np.empty(room)
    count = 0
    for v in range(n):
        d = place[unit[v]]
        if d >= 0 and work[v] > 0.0:
            machine[count], release[count] = d, before[v, d]
            seconds[count], delivery[count] = work[v], after[v, d]
            count += 1

    # One row for each tensor that certainly goes from one device to another.
    tensor, to = np.empty(len(reader), dtype=np.int64), np.empty(len(reader), dtype=np.int64)
    arrival, latest = np.empty(len(reader)), np.empty(len(reader))
    rows = 0
    counted = np.zeros(n, dtype=np.bool_)
    following = np.empty(devices)
    for e in range(tensors):
        d = place[unit[producer[e]]]
        if d < 0:
            continue
        end = before[producer[e], d] + work[producer[e]]
        sent, pair, shared = -1.0, -1, 0.0
        following[:] = -1.0
        for k in range(start[e], start[e + 1]):
            r = reader[k]
            there = place[unit[r]]
            if there == d:
                continue
            if not may[unit[r], d]:
                least = _least_after(may[unit[r]], after[r])
                sent = max(sent, crossing[e] - message[e] + work[r] + least)
            elif not counted[r] and min(sending[e], work[r]) > shared:
                pair, shared = r, min(sending[e], work[r])
            if there >= 0:
                following[there] = max(following[there], work[r] + after[r, there])
        if sent >= 0.0:
            machine[count], release[count] = d, end
            seconds[count], delivery[count] = sending[e], sent
            count += 1
        elif pair >= 0:
            counted[pair] = True
            machine[count], release[count] = d, end
            seconds[count] = shared
            delivery[count] = _least_after(may[unit[pair]], after[pair])
            count += 1
        for other in range(devices):
            if following[other] >= 0.0:
                tensor[rows], to[rows] = e, other
                arrival[rows], latest[rows] = end + crossing[e], step - following[other]
                rows += 1

    last = np.full((devices, devices), -1.0)
    for k in np.argsort(latest[:rows]):
        e, other = tensor[k], to[k]
        d = place[unit[producer[e]]]
        end = arrival[k] - crossing[e]
        if wire[e] > 0.0:
            for side in range(1, 3):
                machine[count] = side * devices + (d if side == 1 else other)
                release[count] = end + message[e] + latency
                seconds[count], delivery[count] = wire[e], step - latest[k]
                count += 1
        if message[e] > 0.0 and arrival[k] > last[d, other] + _ROUNDING * step:
            last[d, other] = latest[k]
            machine[count], release[count] = other, arrival[k]
            seconds[count], delivery[count] = message[e], 0.0
            machine[count + 1], release[count + 1] = d, end
            seconds[count + 1], delivery[count + 1] = message[e] - sending[e], 0.0
            count += 2

    return _least_step(machine[:count], release, seconds, delivery, step)


@compiled
def _least_after(may: BoolArray, after: FloatArray) -> float:
    """The least of after float64[D] where may bool[D]."""
    least = np.inf
    for d in range(len(may)):
        if may[d]:
            least = min(least, after[d])
    return least


@compiled
def _least_step(
    machine: IntArray, release: FloatArray, seconds: FloatArray, delivery: FloatArray, step: float
) -> float:
    """The largest bound of any machine, or the first that is above the step; machine int64[count]
    of each job."""
    by_machine = np.argsort(machine, kind="mergesort")
    least, first = 0.0, 0
    while first < len(machine) and least <= step:
        end = first + 1
        while end < len(machine) and machine[by_machine[end]] == machine[by_machine[first]]:
            end += 1
        members = by_machine[first:end]
        members = members[np.argsort(release[members])]
        least = max(least, one_machine(release, seconds, delivery, members, len(members)))
        first = end
    return least
