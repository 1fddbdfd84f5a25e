"""Makes the schedules that the search continues from their middle, and keeps their changes."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.first_come import (
    MarkedSchedule,
    Scratch,
    run_first_come,
)
from placewire.optimizer.kernels.tables import Tables

_MOST_MARKS = 256
_LEAST_BETWEEN = 16


@compiled
def new_schedule(n: int, inputs: int, devices: int, rails: int) -> MarkedSchedule:
    every = max(_LEAST_BETWEEN, n // _MOST_MARKS + 1)
    marks = n // every + 1
    return MarkedSchedule(
        np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64),
        np.full(n, -1, dtype=np.int64), np.zeros(n), np.zeros(n),
        np.zeros(inputs), every, np.zeros((marks, devices)),
        np.zeros((marks, devices, devices, rails)), np.zeros(marks), np.zeros((marks, devices)),
    )  # fmt: skip


@compiled
def new_scratch(n: int, devices: int, rails: int) -> Scratch:
    return Scratch(
        np.arange(devices) * n,
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
def keep(
    tables: Tables,
    slots: IntArray,
    old: MarkedSchedule,
    new: MarkedSchedule,
    begin: int,
    until: int,
) -> None:
    """Copies events [begin, until) of `new` into `old`."""
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
    # Later events stay, but their inputs may have become known in another order.
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
    lasts: FloatArray,
    slots: IntArray,
    device: IntArray,
    priority: FloatArray,
    channels: FloatArray,
    into: MarkedSchedule,
    scratch: Scratch,
    turn: int,
) -> float:
    """Makes the whole schedule in `into`; returns the step's seconds."""
    n, devices = len(device), len(tables.server)
    load = np.zeros(devices)
    for i in range(n):
        load[device[i]] += lasts[i]
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
    step, begin, until = run_first_come(
        tables, lasts, device, priority, channels, False, None, None, None, None, None, None,
        slots, tails, into, fresh, scratch, load, np.empty(0, dtype=np.int64), -1, 0, np.inf, turn,
    )  # fmt: skip
    keep(tables, slots, into, fresh, begin, until)
    return step
