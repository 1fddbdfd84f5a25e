"""For how long an operator occupies its device: its own time, and that of its messages.

An operator sends its messages before the next one can start, each for `message_seconds` and what
its bytes take. A device takes a message for as long, just before that of its readers there which
has the lowest number. So what an operator lasts follows from the devices alone.
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
    if tables.message_seconds > 0.0 or tables.message_seconds_per_bit > 0.0:
        ends, bits = message_ends(tables, device)
        for i in range(len(device)):
            lasts[i] = lasting(tables, device, ends, bits, i)
    else:
        for i in range(len(device)):
            lasts[i] = tables.seconds[i, device[i]]
    return lasts


@compiled
def lasting(tables: Tables, device: IntArray, ends: IntArray, bits: FloatArray, i: int) -> float:
    """Returns how long operator i lasts, which has so many ends of messages, and their bits."""
    messages = tables.message_seconds * ends[i] + tables.message_seconds_per_bit * bits[i]
    return float(tables.seconds[i, device[i]] + messages)


@compiled
def message_ends(tables: Tables, device: IntArray) -> tuple[IntArray, FloatArray]:
    """int64[n], float64[n]: how many messages each operator sends or takes, and their bits."""
    ends, bits = np.zeros(len(device), dtype=np.int64), np.zeros(len(device))
    least = np.full(len(tables.server), -1, dtype=np.int64)
    for e in range(len(tables.producer)):
        count_ends(tables, device, e, 1, ends, bits, least)
    return ends, bits


@compiled
def count_ends(
    tables: Tables, device: IntArray, e: int, by: int, ends: IntArray, bits: FloatArray,
    least: IntArray,
) -> None:  # fmt: skip
    """Adds `by` to the ends of the sender and the taker of each message of tensor e, and its bits
    as often. least int64[D]: -1 before and after."""
    producer, size = tables.producer[e], tables.bits[e]
    if size == 0.0:
        return
    for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
        c = tables.consumers[k]
        b = device[c]
        if b != device[producer] and (least[b] < 0 or c < least[b]):
            least[b] = c
    for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
        b = device[tables.consumers[k]]
        if least[b] >= 0:
            for i in (producer, least[b]):
                ends[i] += by
                bits[i] += by * size
            least[b] = -1
