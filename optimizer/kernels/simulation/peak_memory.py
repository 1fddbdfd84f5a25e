"""The peak memory of each device in a simulated step."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.first_come import device_offsets
from placewire.optimizer.kernels.tables import Tables


@compiled
def first_not_before(starts: FloatArray, low: int, high: int, time: float) -> int:
    """The first index in [low, high) at which the ascending starts are at least time, else high."""
    while low < high:
        middle = (low + high) // 2
        if starts[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def peak_memory(
    tables: Tables, device: IntArray, position: IntArray, start: FloatArray, sent: FloatArray
) -> FloatArray:
    """float64[D] bytes: the most that weights, receive buffers, live storages and workspace take.

    A device runs one operator at a time, so its memory grows only where an operator starts; live
    ranges are therefore counted in positions on the device. A storage lives until its last local
    reader has finished and its last send has arrived; the readers of a view count as readers of
    what it views. A receive buffer lives from the start of the step until its last local reader.
    """
    n, devices = len(device), len(tables.server)
    offsets = device_offsets(device, devices)
    starts = np.empty(n)
    workspace = np.empty(n)
    for i in range(n):
        starts[offsets[device[i]] + position[i]] = start[i]
        workspace[offsets[device[i]] + position[i]] = tables.workspace_bytes[i]
    change = np.zeros(n + devices)  # device d's positions begin at offsets[d] + d
    resident = np.zeros(devices)
    last_use = position.copy()
    received_until = np.full(devices, -1, dtype=np.int64)
    for index in range(n - 1, -1, -1):
        i = tables.topological[index]
        a = device[i]
        base = offsets[a] + a
        resident[a] += tables.weight_bytes[i]
        last = position[i]
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            if tables.bits[e] == 0.0:
                continue
            low, high = tables.consumers_start[e], tables.consumers_start[e + 1]
            is_sent = False
            for k in range(low, high):
                c = tables.consumers[k]
                until = last_use[c] if tables.is_view[c] else position[c]
                if device[c] == a:
                    last = max(last, until)
                else:
                    is_sent = True
                    received_until[device[c]] = max(received_until[device[c]], until)
            if not is_sent:
                continue
            size = tables.bits[e] / 8.0
            for k in range(low, high):
                b = device[tables.consumers[k]]
                if received_until[b] >= 0:
                    change[offsets[b] + b] += size
                    change[offsets[b] + b + received_until[b] + 1] -= size
                    received_until[b] = -1
            after = first_not_before(starts, offsets[a], offsets[a + 1], sent[e]) - offsets[a]
            last = max(last, after - 1)
        last_use[i] = last
        first = tables.allocator[i] if device[tables.allocator[i]] == a else i
        change[base + position[first]] += tables.activation_bytes[i]
        change[base + last + 1] -= tables.activation_bytes[i]
    peak = resident.copy()
    for d in range(devices):
        live = resident[d]
        for p in range(offsets[d + 1] - offsets[d]):
            live += change[offsets[d] + d + p]
            peak[d] = max(peak[d], live + workspace[offsets[d] + p])
    return peak


@compiled
def static_memory(tables: Tables, device: IntArray) -> FloatArray:
    """float64[D] bytes: the memory of each device by thesis (3.2)."""
    total = np.zeros(len(tables.server))
    for i in range(len(device)):
        total[device[i]] += tables.static_bytes[i]
    return total
