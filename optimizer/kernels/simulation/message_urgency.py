"""How urgent a message is: the longest path that waits for its arrival.

On a path, each operator takes its seconds on its device, and each tensor that crosses devices what
a transfer takes alone at its pair's widest rate. This needs no simulation, so that the send order
is known before anything is sent.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import Tables


@compiled
def remaining_seconds(tables: Tables, device: IntArray) -> FloatArray:
    """float64[n]: from each operator's start to the end of the step, if nothing ever waited."""
    remaining = np.zeros(len(device))
    for index in range(len(device) - 1, -1, -1):
        i = tables.topological[index]
        a = device[i]
        longest = 0.0
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                c = tables.consumers[k]
                took = remaining[c]
                b = device[c]
                if b != a and tables.bits[e] > 0.0:
                    took += tables.alone_setup[a, b] + tables.bits[e] / tables.alone_rate[a, b]
                longest = max(longest, took)
        remaining[i] = tables.seconds[i, a] + longest
    return remaining


@compiled
def number_messages(
    tables: Tables, device: IntArray, number: IntArray, urgency: FloatArray
) -> IntArray:
    """Numbers the messages of a placement in the order of (tensor, destination device).

    number int64[E], by place in `consumers`: the message that brings that consumer its tensor, -1
    where none does. urgency float64[E], by message: filled as far as there are messages. Returns
    int64[S, S]: how many messages go over rails between two servers.
    """
    devices, servers = len(tables.server), len(tables.nic_rates)
    remaining = remaining_seconds(tables, device)
    over_rails = np.zeros((servers, servers), dtype=np.int64)
    known = np.full(devices, -1, dtype=np.int64)
    reached = np.empty(devices, dtype=np.int64)
    messages = 0
    for e in range(len(tables.producer)):
        low, high = tables.consumers_start[e], tables.consumers_start[e + 1]
        a = device[tables.producer[e]]
        count = 0
        for k in range(low, high):
            b = device[tables.consumers[k]]
            number[k] = -1
            if b == a or tables.bits[e] == 0.0 or known[b] >= messages:
                continue
            known[b] = messages
            hole = count
            while hole > 0 and reached[hole - 1] > b:
                reached[hole] = reached[hole - 1]
                hole -= 1
            reached[hole] = b
            count += 1
        for place in range(count):
            b = reached[place]
            known[b] = messages + place
            urgency[messages + place] = -1.0
            if tables.path_rate[a, b] == 0.0:
                over_rails[tables.server[a], tables.server[b]] += 1
        if count == 0:
            continue
        for k in range(low, high):
            c = tables.consumers[k]
            if device[c] != a:
                number[k] = known[device[c]]
                urgency[number[k]] = max(urgency[number[k]], remaining[c])
        messages += count
    return over_rails
