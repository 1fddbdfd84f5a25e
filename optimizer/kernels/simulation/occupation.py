"""For how long an operator occupies its device: its own time, and that of its messages.

An operator sends its messages before the next one can start, each for `message_seconds`. A device
takes a message for as long, just before that of its readers there which has the lowest number. So
what an operator lasts follows from the devices alone.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import Tables


@compiled
def occupation(tables: Tables, device: IntArray) -> FloatArray:
    """float64[n]: seconds of each operator on its device, with its messages."""
    lasts = np.empty(len(device))
    for i in range(len(device)):
        lasts[i] = tables.seconds[i, device[i]]
    if tables.message_seconds > 0.0:
        ends = message_ends(tables, device)
        for i in range(len(device)):
            lasts[i] += tables.message_seconds * ends[i]
    return lasts


@compiled
def message_ends(tables: Tables, device: IntArray) -> IntArray:
    """int64[n]: how many messages each operator sends or takes."""
    ends = np.zeros(len(device), dtype=np.int64)
    least = np.full(len(tables.server), -1, dtype=np.int64)
    for e in range(len(tables.producer)):
        count_ends(tables, device, e, 1, ends, least)
    return ends


@compiled
def count_ends(
    tables: Tables, device: IntArray, e: int, by: int, ends: IntArray, least: IntArray
) -> None:
    """Adds `by` to the ends of the sender and the taker of each message of tensor e. least
    int64[D]: -1 before and after."""
    producer = tables.producer[e]
    if tables.bits[e] == 0.0:
        return
    for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
        c = tables.consumers[k]
        b = device[c]
        if b != device[producer] and (least[b] < 0 or c < least[b]):
            least[b] = c
    for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
        b = device[tables.consumers[k]]
        if least[b] >= 0:
            ends[producer] += by
            ends[least[b]] += by
            least[b] = -1
