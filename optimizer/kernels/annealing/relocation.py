"""Moves operators to other devices, and with them the time that messages take of operators."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.occupation import (
    count_ends,
    lasting,
    message_ends,
    occupation,
)
from placewire.optimizer.kernels.tables import Tables


class Occupied(NamedTuple):
    """lasts, bits float64[n] and ends int64[n]: as occupation.py has them, of the state of the
    search. load float64[D]: the sum of lasts on each device. The others are working space: tensors,
    tensor_mark int64[m]; operators, mark int64[n]; lasted float64[n]; least int64[D]."""

    lasts: FloatArray
    ends: IntArray
    bits: FloatArray
    load: FloatArray
    tensors: IntArray
    tensor_mark: IntArray
    operators: IntArray
    mark: IntArray
    lasted: FloatArray
    least: IntArray


@compiled
def new_occupied(tables: Tables, device: IntArray) -> Occupied:
    n, m, devices = len(device), len(tables.producer), len(tables.server)
    lasts, load = occupation(tables, device), np.zeros(devices)
    for i in range(n):
        load[device[i]] += lasts[i]
    ends, bits = message_ends(tables, device)
    return Occupied(
        lasts, ends, bits, load, np.empty(m, dtype=np.int64),
        np.full(m, -1, dtype=np.int64), np.empty(n, dtype=np.int64),
        np.full(n, -1, dtype=np.int64), np.empty(n), np.full(devices, -1, dtype=np.int64),
    )  # fmt: skip


@compiled
def touched(
    tables: Tables, occupied: Occupied, op: IntArray, count: int, turn: int
) -> tuple[int, int]:
    """Lists in `occupied` the tensors whose messages a move of op[:count] may change, and
    op[:count] with all others that make or read them, and what these last now. Returns how many.
    turn: larger than before.
    """
    operators, mark = occupied.operators, occupied.mark
    for k in range(count):
        operators[k] = op[k]
        mark[op[k]] = turn
        occupied.lasted[op[k]] = occupied.lasts[op[k]]
    if tables.message_seconds == 0.0 and tables.message_seconds_per_bit == 0.0:
        return 0, count
    found, every = 0, count
    for k in range(count):
        i = op[k]
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            found = _listed(tables, occupied, tables.outputs[o], found, turn)
        for o in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            found = _listed(tables, occupied, tables.inputs[o], found, turn)
    for t in range(found):
        e = occupied.tensors[t]
        i = tables.producer[e]
        if mark[i] != turn:
            mark[i] = turn
            operators[every] = i
            every += 1
        for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
            c = tables.consumers[k]
            if mark[c] != turn:
                mark[c] = turn
                operators[every] = c
                every += 1
    for k in range(count, every):
        occupied.lasted[operators[k]] = occupied.lasts[operators[k]]
    return found, every


@compiled
def _listed(tables: Tables, occupied: Occupied, e: int, found: int, turn: int) -> int:
    if tables.bits[e] == 0.0 or occupied.tensor_mark[e] == turn:
        return found
    occupied.tensor_mark[e] = turn
    occupied.tensors[found] = e
    return found + 1


@compiled
def relocate(
    tables: Tables, occupied: Occupied, device: IntArray, op: IntArray, to: IntArray, count: int,
    tensors: int, every: int,
) -> None:  # fmt: skip
    """Puts op[:count] on the devices to[:count]. tensors, every: what touched() returned."""
    lasts, ends, bits, load = occupied.lasts, occupied.ends, occupied.bits, occupied.load
    for k in range(every):
        i = occupied.operators[k]
        load[device[i]] -= lasts[i]
    for t in range(tensors):
        count_ends(tables, device, occupied.tensors[t], -1, ends, bits, occupied.least)
    for k in range(count):
        device[op[k]] = to[k]
    for t in range(tensors):
        count_ends(tables, device, occupied.tensors[t], 1, ends, bits, occupied.least)
    for k in range(every):
        i = occupied.operators[k]
        lasts[i] = lasting(tables, device, ends, bits, i)
        load[device[i]] += lasts[i]


@compiled
def changed(occupied: Occupied, count: int, every: int) -> int:
    """Puts the operators that last otherwise than `lasted` says after the first `count` of
    `operators`; returns how many these are with the first `count`."""
    alike = count
    for k in range(count, every):
        i = occupied.operators[k]
        if occupied.lasts[i] != occupied.lasted[i]:
            occupied.operators[k] = occupied.operators[alike]
            occupied.operators[alike] = i
            alike += 1
    return alike
