"""What placements are built with: longest paths, insertion into gaps, cuts of an order."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def longest_tails(
    topological: IntArray,
    outputs_start: IntArray,
    outputs: IntArray,
    consumers_start: IntArray,
    consumers: IntArray,
    own: FloatArray,
    on_edge: FloatArray,
) -> FloatArray:
    """float64[n]: each operator's own seconds float64[n] plus the longest path behind it, on which
    every tensor takes on_edge float64[m]."""
    rank = np.zeros(len(own))
    for index in range(len(topological) - 1, -1, -1):
        i = topological[index]
        tail = 0.0
        for o in range(outputs_start[i], outputs_start[i + 1]):
            e = outputs[o]
            for k in range(consumers_start[e], consumers_start[e + 1]):
                tail = max(tail, on_edge[e] + rank[consumers[k]])
        rank[i] = own[i] + tail
    return rank


@compiled
def longest_heads(
    topological: IntArray,
    inputs_start: IntArray,
    inputs: IntArray,
    producer: IntArray,
    own: FloatArray,
    on_edge: FloatArray,
) -> FloatArray:
    """float64[n]: the longest path that ends just before each operator, on which every tensor takes
    on_edge float64[m]."""
    head = np.zeros(len(own))
    for i in topological:
        for k in range(inputs_start[i], inputs_start[i + 1]):
            j = producer[inputs[k]]
            head[i] = max(head[i], head[j] + own[j] + on_edge[inputs[k]])
    return head


@compiled
def earliest(
    starts: FloatArray, ends: FloatArray, base: int, count: int, ready: float, seconds: float
) -> float:
    """The first time from `ready` on from which the device is free for `seconds`.

    It is busy in the intervals starts, ends [base:base + count], which ascend and do not touch.
    """
    low, high = base, base + count
    while low < high:
        middle = (low + high) // 2
        if ends[middle] > ready:
            high = middle
        else:
            low = middle + 1
    at = ready
    for k in range(low, base + count):
        if at + seconds <= starts[k]:
            break
        at = max(at, ends[k])
    return at


@compiled
def take(
    starts: FloatArray, ends: FloatArray, base: int, count: int, start: float, seconds: float
) -> int:
    """Adds the busy interval [start, start + seconds), joined with any that it touches; returns the
    new count."""
    if seconds <= 0.0:
        return count
    low, high = base, base + count
    while low < high:
        middle = (low + high) // 2
        if starts[middle] > start:
            high = middle
        else:
            low = middle + 1
    joins_left = low > base and ends[low - 1] == start
    joins_right = low < base + count and starts[low] == start + seconds
    if joins_left and joins_right:
        ends[low - 1] = ends[low]
        for k in range(low, base + count - 1):
            starts[k], ends[k] = starts[k + 1], ends[k + 1]
        return count - 1
    if joins_left:
        ends[low - 1] = start + seconds
        return count
    if joins_right:
        starts[low] = start
        return count
    for k in range(base + count, low, -1):
        starts[k], ends[k] = starts[k - 1], ends[k - 1]
    starts[low], ends[low] = start, start + seconds
    return count + 1


@compiled
def insert_in_order(
    order: IntArray, unit: IntArray, needed: FloatArray, able: BoolArray, room: FloatArray,
    seconds: FloatArray, setup: FloatArray, per_byte: FloatArray, tensor_bytes: FloatArray,
    ahead: FloatArray, inputs_start: IntArray, inputs: IntArray, producer: IntArray,
    device: IntArray, start: FloatArray,
) -> bool:  # fmt: skip
    """Puts each operator of order int64[n], producers first, into the gap on the device where its
    finish plus ahead float64[n, D] is least; fills device int64[n] and start float64[n].

    ahead: what is estimated to follow the operator on that device. unit int64[n]; needed
    float64[units] bytes; able bool[units, D]; room float64[D] bytes, which is used up. The device
    of a unit's first operator is that of the whole unit. A transfer takes setup + bytes * per_byte,
    float64[D, D]. Returns False where a unit finds no device.
    """
    n, devices = seconds.shape
    starts, ends = np.empty(devices * n), np.empty(devices * n)
    count = np.zeros(devices, dtype=np.int64)
    home = np.full(len(needed), -1, dtype=np.int64)
    finish = np.zeros(n)
    for i in order:
        u = unit[i]
        best, chosen, at = np.inf, -1, 0.0
        for d in range(devices):
            if (home[u] >= 0 and home[u] != d) or (
                home[u] < 0 and (room[d] < needed[u] or not able[u, d])
            ):
                continue
            ready = 0.0
            for k in range(inputs_start[i], inputs_start[i + 1]):
                j, size = producer[inputs[k]], tensor_bytes[inputs[k]]
                came = finish[j]
                if device[j] != d and size > 0.0:
                    came += setup[device[j], d] + size * per_byte[device[j], d]
                ready = max(ready, came)
            begin = earliest(starts, ends, d * n, count[d], ready, seconds[i, d])
            # Where an input can never arrive, every device is as late (inf) and the first is taken:
            # the check of the placement then says what is missing.
            if chosen < 0 or begin + seconds[i, d] + ahead[i, d] < best:
                best, chosen, at = begin + seconds[i, d] + ahead[i, d], d, begin
        if chosen < 0:
            return False
        start[i] = at
        finish[i] = at + seconds[i, chosen]
        device[i] = chosen
        if home[u] < 0:
            home[u] = chosen
            room[chosen] -= needed[u]
        count[chosen] = take(starts, ends, chosen * n, count[chosen], at, seconds[i, chosen])
    return True


@compiled
def cut(order: IntArray, sizes: FloatArray, able: BoolArray, room: FloatArray) -> IntArray:
    """int64[units]: the device of each unit, filling one device after the other.

    room float64[D] is used up. A device that has no room for the next unit of order is full. A unit
    that the current device cannot run goes to the roomiest device that can run it; the first entry
    is -1 where that one has no room for it, or there is none.
    """
    devices = len(room)
    where = np.full(len(sizes), -1, dtype=np.int64)
    current = 0
    for u in order:
        while current < devices and able[u, current] and room[current] < sizes[u]:
            current += 1
        chosen = -1
        if current < devices and able[u, current]:
            chosen = current
        else:
            for d in range(devices):
                if able[u, d] and (chosen < 0 or room[d] > room[chosen]):
                    chosen = d
            if chosen < 0 or room[chosen] < sizes[u]:
                where[0] = -1
                return where
        where[u] = chosen
        room[chosen] -= sizes[u]
    return where
