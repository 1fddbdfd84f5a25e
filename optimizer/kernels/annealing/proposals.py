"""Proposes the moves of the search: which operators change device, or priority."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import Tables

# Kinds of moves. A set is one of the sets of a Neighbourhood.
TO_NEIGHBOUR = 0  # a set goes to the device of one of its producers or consumers
TO_ANY = 1  # a set goes to any device
RUN_NEAR = 2  # an operator gets a priority next to that of one that starts at about the same time
SWAP = 3  # two devices exchange what they run in a window of time
JOIN = 4  # one end of a critical message goes to the device of the other end
RELIEVE = 5  # a set goes to the device that has least to do at that time
HASTEN = 6  # a critical operator gets priority over the one that it waits for on its device
BLOCKS_MOVE = 7  # the same set of several blocks goes to one device
BLOCKS_COPY = 8  # other blocks get a part of one block's placement
KINDS = 9

# idlest looks at so many operators before an operator and at so many from it on; the window of a
# SWAP is shorter than that.
_SPANS = 96


class Neighbourhood(NamedTuple):
    """Sets of operators that may move together.

    Set k holds the operators members[start[k]:start[k + 1]]; of_start, of_sets are the sets that
    each operator is in. Sets hold whole units (co-location groups, or single operators), so that no
    move separates one. unit int64[n] is each operator's unit; unit_start, unit_members are the
    operators of each unit.

    table int64[positions, blocks]: the operators of repeated blocks; row and column int64[n]: where
    each operator stands in it (row -1: in no block).
    """

    start: IntArray
    members: IntArray
    of_start: IntArray
    of_sets: IntArray
    unit: IntArray
    unit_start: IntArray
    unit_members: IntArray
    table: IntArray
    row: IntArray
    column: IntArray


class Guide(NamedTuple):
    """The schedule at which moves are aimed: order int64[n] are the operators by start, place
    int64[n] is its inverse; critical, reason int64[c] are what critical_path returns."""

    order: IntArray
    place: IntArray
    critical: IntArray
    reason: IntArray


@compiled
def critical_path(
    tables: Tables,
    device: IntArray,
    order: IntArray,
    start: FloatArray,
    finish: FloatArray,
    input_at: FloatArray,
) -> tuple[IntArray, IntArray]:
    """Returns (critical operators from the end of the step backwards, what each waited for: the
    producer of its last input, or the operator before it on its device; -1 where neither).

    order int64[n]: operators by start; input_at float64[inputs]: when each input was there, in the
    order of tables.inputs.
    """
    n = len(order)
    before = np.full(n, -1, dtype=np.int64)
    last = np.full(len(tables.server), -1, dtype=np.int64)
    for i in order:
        before[i] = last[device[i]]
        last[device[i]] = i
    path, reason = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    count, i = 0, -1
    for j in order:
        if i < 0 or finish[j] > finish[i]:
            i = j
    while i >= 0 and count < n:
        waited, until = before[i], finish[before[i]] if before[i] >= 0 else -1.0
        for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            if input_at[k] >= until:
                waited, until = tables.producer[tables.inputs[k]], input_at[k]
        path[count] = i
        reason[count] = waited
        count += 1
        i = waited
    return path[:count], reason[:count]


@compiled
def add_unit(
    hood: Neighbourhood, device: IntArray, i: int, d: int, op: IntArray, to: IntArray, count: int
) -> int:
    """Adds to a move that operator i's unit goes to device d, if it is elsewhere; returns the new
    count."""
    u = hood.unit[i]
    for k in range(hood.unit_start[u], hood.unit_start[u + 1]):
        j = hood.unit_members[k]
        if device[j] != d:
            op[count] = j
            to[count] = d
            count += 1
    return count


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
def idlest(tables: Tables, guide: Guide, device: IntArray, i: int) -> int:
    """The device, other than i's own, with least work among the operators around i in time."""
    devices = len(tables.server)
    work = np.zeros(devices)
    low, high = max(0, guide.place[i] - _SPANS), min(len(device), guide.place[i] + _SPANS)
    for k in range(low, high):
        j = guide.order[k]
        work[device[j]] += tables.seconds[j, device[j]]
    best = -1
    for d in range(devices):
        if d != device[i] and (best < 0 or work[d] < work[best]):
            best = d
    return max(best, 0)


@compiled
def propose(
    tables: Tables,
    hood: Neighbourhood,
    guide: Guide,
    device: IntArray,
    priority: FloatArray,
    kind: int,
    low: int,
    high: int,
    op: IntArray,
    to: IntArray,
    stamp: IntArray,
    turn: int,
) -> tuple[int, float]:
    """Proposes a move of this kind around an operator of guide.order[low:high], drawn at random.

    Returns (count, priority). The operators op[:count] go to the devices to[:count]; or, where
    to[0] is -1, op[0] gets the priority. A count of 0 means that there is no such move here. stamp
    int64[n] is working space; turn must grow with every call.
    """
    devices = len(tables.server)
    i = guide.order[np.random.randint(low, high)]
    count = 0
    if kind in (RUN_NEAR, HASTEN):
        side = 1.0 if np.random.random() < 0.5 else -1.0
        if kind == HASTEN:
            k = np.random.randint(len(guide.critical))
            i, j = guide.critical[k], guide.reason[k]
            if j < 0 or device[i] != device[j]:
                return 0, 0.0
            side = 1.0
        else:
            at, reach = guide.place[i], max(8, high - low)
            j = guide.order[np.random.randint(max(0, at - reach), min(len(device), at + reach + 1))]
        if i == j:
            return 0, 0.0
        op[0] = i
        to[0] = -1
        return 1, priority[j] + side * 1e-6 * (abs(priority[j]) + 1e-12)
    if kind == SWAP:
        a, b = np.random.randint(devices), np.random.randint(devices)
        span = np.random.randint(4, _SPANS)
        first = guide.place[i]
        for k in range(first, min(len(device), first + span)):
            j = guide.order[k]
            if (device[j] != a and device[j] != b) or stamp[hood.unit[j]] == turn:
                continue
            stamp[hood.unit[j]] = turn
            count = add_unit(hood, device, j, b if device[j] == a else a, op, to, count)
    elif kind == JOIN:
        k = np.random.randint(len(guide.critical))
        i, j = guide.critical[k], guide.reason[k]
        if j < 0 or device[i] == device[j]:
            return 0, 0.0
        if np.random.random() < 0.5:
            i, j = j, i
        target = device[j]
        if np.random.random() < 0.5:
            count = add_unit(hood, device, i, target, op, to, count)
        else:
            pick = hood.of_sets[np.random.randint(hood.of_start[i], hood.of_start[i + 1])]
            for p in range(hood.start[pick], hood.start[pick + 1]):
                if device[hood.members[p]] != target:
                    op[count] = hood.members[p]
                    to[count] = target
                    count += 1
    elif kind >= BLOCKS_MOVE:
        blocks = hood.table.shape[1]
        if hood.row[i] < 0:
            return 0, 0.0
        home = hood.column[i]
        length = np.random.randint(1, blocks)
        if np.random.random() < 0.5:
            length = min(length, np.random.randint(1, 5))
        begin = max(0, home - np.random.randint(length + 1))
        end = min(blocks, begin + length + 1)
        target = np.random.randint(devices)
        if np.random.random() < 0.6:
            target = neighbour_device(tables, device, i)
        pick = hood.of_sets[np.random.randint(hood.of_start[i], hood.of_start[i + 1])]
        turned = np.random.randint(devices) if np.random.random() < 0.3 else 0
        for p in range(hood.start[pick], hood.start[pick + 1]):
            member = hood.members[p]
            if hood.row[member] < 0:
                continue
            shift = hood.column[member] - home
            for b in range(begin, end):
                if b + shift < 0 or b + shift >= blocks:
                    continue
                j = hood.table[hood.row[member], b + shift]
                if stamp[hood.unit[j]] == turn:
                    continue
                stamp[hood.unit[j]] = turn
                d = target
                if kind == BLOCKS_COPY:
                    d = (device[member] + (turned if b != home else 0)) % devices
                count = add_unit(hood, device, j, d, op, to, count)
    else:
        pick = hood.of_sets[np.random.randint(hood.of_start[i], hood.of_start[i + 1])]
        if kind == TO_NEIGHBOUR:
            first, last = hood.start[pick], hood.start[pick + 1]
            target = neighbour_device(tables, device, hood.members[np.random.randint(first, last)])
        elif kind == TO_ANY:
            target = np.random.randint(devices)
        else:
            target = idlest(tables, guide, device, i)
        for p in range(hood.start[pick], hood.start[pick + 1]):
            if device[hood.members[p]] != target:
                op[count] = hood.members[p]
                to[count] = target
                count += 1
    for k in range(count):
        if tables.seconds[op[k], to[k]] == np.inf:
            return 0, 0.0
    return count, 0.0


@compiled
def choose_kind(weights: FloatArray) -> int:
    """Draws an index with a probability in proportion to its weight."""
    total = 0.0
    for w in weights:
        total += w
    pick = np.random.random() * total
    for k in range(len(weights)):
        pick -= weights[k]
        if pick < 0.0:
            return k
    return len(weights) - 1
