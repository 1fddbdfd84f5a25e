"""List scheduling again from where a move first matters, until it no longer does.

The same as schedule.by_priority, event for event. A schedule keeps the order of its events (each
starts one operator, in the order of time) and, every so many of them, what the devices and channels
were doing. A changed placement is simulated from the last such mark before the first event that can
turn out differently, and only until a mark at which everything is as it was; or until the step is
certain to exceed a limit.
"""

# Compiled loops stay one function each: objects and many small calls would cost the gain.
# ruff: noqa: PLR0912, PLR0915

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.heap import pop, push
from placewire.optimizer.kernels.simulation.network import send
from placewire.optimizer.kernels.tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MOST_MARKS = 256
_LEAST_BETWEEN = 16


class Schedule(NamedTuple):
    """order int64[n]: the operator that each event starts; place int64[n] the reverse; ready
    int64[n]: for each event, the event after which its operator's inputs were all known (-1: from
    the beginning). start, finish float64[n]; input_at float64[inputs]: when each input was there,
    in the order of tables.inputs.

    Marks, one every `every` events (mark k before event k * every): idle float64[K, D] when each
    device was done, free float64[K, D, D, R] each channel. Of the events from each mark to the next
    ends float64[K] the last finish, work float64[K, D] the seconds on each device.
    """

    order: IntArray
    place: IntArray
    ready: IntArray
    start: FloatArray
    finish: FloatArray
    input_at: FloatArray
    every: int
    idle: FloatArray
    free: FloatArray
    ends: FloatArray
    work: FloatArray


class Scratch(NamedTuple):
    """What one simulation needs and the next overwrites. The heaps of device d begin at d * n;
    turn int64[n] tells which simulation filled an operator's entries last, moved int64[n] which one
    was of a move of the operator."""

    later_key: FloatArray
    later_item: IntArray
    ready_key: FloatArray
    ready_item: IntArray
    missing: IntArray
    inputs_at: FloatArray
    ready_after: IntArray
    unlike: IntArray
    turn: IntArray
    moved: IntArray
    seen: IntArray
    arrival: FloatArray
    part_start: FloatArray
    part_finish: FloatArray


@compiled
def new_schedule(n: int, inputs: int, devices: int, rails: int) -> Schedule:
    every = max(_LEAST_BETWEEN, n // _MOST_MARKS + 1)
    marks = n // every + 1
    return Schedule(
        np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64),
        np.full(n, -1, dtype=np.int64), np.zeros(n), np.zeros(n),
        np.zeros(inputs), every, np.zeros((marks, devices)),
        np.zeros((marks, devices, devices, rails)), np.zeros(marks), np.zeros((marks, devices)),
    )  # fmt: skip


@compiled
def new_scratch(n: int, devices: int, rails: int) -> Scratch:
    return Scratch(
        np.empty(n * devices), np.empty(n * devices, dtype=np.int64),
        np.empty(n * devices), np.empty(n * devices, dtype=np.int64),
        np.empty(n, dtype=np.int64), np.empty(n), np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int64), np.full(n, -1, dtype=np.int64),
        np.full(n, -1, dtype=np.int64), np.full(devices, -1, dtype=np.int64),
        np.empty(devices), np.empty(rails), np.empty(rails),
    )  # fmt: skip


@compiled
def consumer_slots(tables: Tables) -> IntArray:
    """int64[edges]: for each entry of tables.consumers, its place in tables.inputs."""
    filled = tables.inputs_start[:-1].copy()
    tensor_slot = np.empty(len(tables.consumers), dtype=np.int64)
    for e in range(len(tables.producer)):
        for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
            c = tables.consumers[k]
            # tables.inputs lists a consumer's tensors in ascending order
            tensor_slot[k] = filled[c]
            filled[c] += 1
    return tensor_slot


@compiled
def resume(
    tables: Tables,
    slots: IntArray,
    tails: FloatArray,
    device: IntArray,
    priority: FloatArray,
    channels: FloatArray,
    old: Schedule,
    new: Schedule,
    scratch: Scratch,
    load: FloatArray,
    op: IntArray,
    count: int,
    first: int,
    limit: float,
    turn: int,
) -> tuple[float, int, int]:
    """(step, first event simulated, first event not simulated): `new` holds the events between.

    device and priority are the changed ones, op[:count] the operators that changed; load float64[D]
    the seconds on each device in all; tails float64[n] the shortest time from an operator's finish
    to the step's end. step is inf where it exceeds `limit`, or where a message never arrives.
    turn: grows with every call.
    """
    n, devices = len(device), len(tables.server)
    rails = channels.shape[2]
    mark = min(first // old.every, len(old.ends) - 1)
    begin = mark * old.every
    later, ready = np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=np.int64)
    idle_at, left = old.idle[mark].copy(), load.copy()
    free = old.free[mark].copy()
    step = 0.0
    for k in range(mark):
        step = max(step, old.ends[k])
        for d in range(devices):
            left[d] -= old.work[k, d]
    bar = limit * (1.0 + 1e-9)
    for d in range(devices):
        if idle_at[d] + left[d] > bar:
            return np.inf, begin, begin
    for d in range(devices):
        scratch.seen[d] = -1
    for m in range(count):
        scratch.moved[op[m]] = turn
    later_key, later_item = scratch.later_key, scratch.later_item
    ready_key, ready_item = scratch.ready_key, scratch.ready_item
    for q in range(begin, n):
        if old.ready[q] >= begin:
            continue
        i = old.order[q]
        at = 0.0
        for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            at = max(at, old.input_at[k])
        scratch.turn[i] = turn
        scratch.unlike[i] = 0
        scratch.ready_after[i] = old.ready[q]
        d = device[i]
        later[d] = push(later_key, later_item, d * n, later[d], at, i)
    # To be as it was, all that ran must be what ran then: counted by the mark they ran before.
    earlier = np.zeros(len(old.ends) + 1, dtype=np.int64)
    same, open_unlike, changed = 0, 0, 0
    since_end = 0.0
    since_work = np.zeros(devices)
    for q in range(begin, n):
        if q % old.every == 0:
            at_mark = q // old.every
            if q > begin:
                new.ends[at_mark - 1] = since_end
                for d in range(devices):
                    new.work[at_mark - 1, d] = since_work[d]
                    since_work[d] = 0.0
                since_end = 0.0
                same += earlier[at_mark - 1]
                if same == q - begin and open_unlike == 0 and changed == count:
                    alike = True
                    for a in range(devices):
                        alike = alike and idle_at[a] == old.idle[at_mark, a]
                        for b in range(devices):
                            for r in range(rails):
                                alike = alike and free[a, b, r] == old.free[at_mark, a, b, r]
                    if alike:
                        for k in range(at_mark, len(old.ends)):
                            step = max(step, old.ends[k])
                        return step if step <= limit else np.inf, begin, q
            for a in range(devices):
                new.idle[at_mark, a] = idle_at[a]
                for b in range(devices):
                    for r in range(rails):
                        new.free[at_mark, a, b, r] = free[a, b, r]
        chosen, now = -1, np.inf
        for d in range(devices):
            if ready[d] > 0:
                at = idle_at[d]
            elif later[d] > 0:
                at = max(idle_at[d], later_key[d * n])
            else:
                continue
            if chosen < 0 or at < now:
                chosen, now = d, at
        a, base = chosen, chosen * n
        i = -1
        while later[a] > 0 and later_key[base] <= now:
            item = later_item[base]
            later[a] = pop(later_key, later_item, base, later[a])
            if ready[a] == 0 and (later[a] == 0 or later_key[base] > now):
                i = item  # the only choice: no need to queue it
            else:
                ready[a] = push(ready_key, ready_item, base, ready[a], -priority[item], item)
        if i < 0:
            i = ready_item[base]
            ready[a] = pop(ready_key, ready_item, base, ready[a])
        if now + left[a] > bar:
            return np.inf, begin, q
        seconds = tables.seconds[i, a]
        left[a] -= seconds
        end = now + seconds
        if end + tails[i] > bar:
            return np.inf, begin, q
        new.order[q] = i
        new.ready[q] = scratch.ready_after[i]
        new.start[i] = now
        new.finish[i] = end
        idle_at[a] = end
        step = max(step, end)
        since_end = max(since_end, end)
        since_work[a] += seconds
        was = old.place[i] // old.every
        if was < q // old.every:
            same += 1
        else:
            earlier[was] += 1
        open_unlike -= scratch.unlike[i]
        if scratch.moved[i] == turn:
            changed += 1
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                c = tables.consumers[k]
                b = device[c]
                at = end
                if b != a and tables.bits[e] > 0.0:
                    if scratch.seen[b] != e:
                        scratch.seen[b] = e
                        scratch.arrival[b] = send(
                            tables.path_setup[a, b], tables.path_rate[a, b],
                            tables.paths_queue, tables.setup_seconds, tables.cut_bits,
                            tables.cuts_equally, channels, free, a, b,
                            tables.bits[e], at, scratch.part_start, scratch.part_finish,
                        )  # fmt: skip
                    at = scratch.arrival[b]
                if scratch.turn[c] != turn:
                    scratch.turn[c] = turn
                    scratch.unlike[c] = 0
                    scratch.missing[c] = 0
                    scratch.inputs_at[c] = 0.0
                    for p in range(tables.inputs_start[c], tables.inputs_start[c + 1]):
                        if old.place[tables.producer[tables.inputs[p]]] >= begin:
                            scratch.missing[c] += 1
                        else:
                            scratch.inputs_at[c] = max(scratch.inputs_at[c], old.input_at[p])
                slot = slots[k]
                new.input_at[slot] = at
                if at != old.input_at[slot]:
                    scratch.unlike[c] += 1
                    open_unlike += 1
                scratch.inputs_at[c] = max(scratch.inputs_at[c], at)
                scratch.missing[c] -= 1
                if scratch.missing[c] == 0:
                    scratch.ready_after[c] = q
                    later[b] = push(later_key, later_item, b * n, later[b], scratch.inputs_at[c], c)
    last = (n - 1) // old.every
    if begin < n:
        new.ends[last] = since_end
        for d in range(devices):
            new.work[last, d] = since_work[d]
    return step if step <= limit else np.inf, begin, n


@compiled
def keep(
    tables: Tables, slots: IntArray, old: Schedule, new: Schedule, begin: int, until: int
) -> None:
    """Events [begin, until) of `new` become those of `old`."""
    for q in range(begin, until):
        i = new.order[q]
        old.order[q] = i
        old.ready[q] = new.ready[q]
        old.place[i] = q
        old.start[i] = new.start[i]
        old.finish[i] = new.finish[i]
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                old.input_at[slots[k]] = new.input_at[slots[k]]
    # Later events are as they were, but what they wait for may have come in another order.
    for q in range(begin, until):
        i = old.order[q]
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                c = tables.consumers[k]
                if old.place[c] < until:
                    continue
                last = -1
                for p in range(tables.inputs_start[c], tables.inputs_start[c + 1]):
                    last = max(last, old.place[tables.producer[tables.inputs[p]]])
                old.ready[old.place[c]] = last
    devices, rails = new.free.shape[1], new.free.shape[3]
    for k in range(begin // old.every, (until + old.every - 1) // old.every):
        old.ends[k] = new.ends[k]
        for a in range(devices):
            old.idle[k, a] = new.idle[k, a]
            old.work[k, a] = new.work[k, a]
            for b in range(devices):
                for r in range(rails):
                    old.free[k, a, b, r] = new.free[k, a, b, r]


@compiled
def schedule_all(
    tables: Tables,
    slots: IntArray,
    device: IntArray,
    priority: FloatArray,
    channels: FloatArray,
    into: Schedule,
    scratch: Scratch,
    turn: int,
) -> float:
    """The whole schedule from nothing; the step's seconds."""
    n, devices = len(device), len(tables.server)
    load = np.zeros(devices)
    for i in range(n):
        load[device[i]] += tables.seconds[i, device[i]]
        into.order[i] = i
        into.place[i] = i
        into.ready[i] = 0 if tables.inputs_start[i + 1] > tables.inputs_start[i] else -1
    for d in range(devices):
        into.idle[0, d] = 0.0
        for b in range(devices):
            for r in range(channels.shape[2]):
                into.free[0, d, b, r] = 0.0
    fresh = new_schedule(n, len(tables.inputs), devices, channels.shape[2])
    tails = np.zeros(n)
    step, begin, until = resume(
        tables, slots, tails, device, priority, channels, into, fresh, scratch, load,
        np.empty(0, dtype=np.int64), -1, 0, np.inf, turn,
    )  # fmt: skip
    keep(tables, slots, into, fresh, begin, until)
    return step
