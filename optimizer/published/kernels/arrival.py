"""When everything happens where each device runs what became ready first, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.heap import pop, push
from placewire.optimizer.kernels.simulation.network import send
from placewire.optimizer.kernels.simulation.schedule import device_offsets
from placewire.optimizer.kernels.tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@compiled
def by_arrival(tables: Tables, device: IntArray, channels: FloatArray, turn: IntArray) -> int:
    """Fills turn int64[n], in which order operators start; what is ready at once starts by number.
    Messages go over first-come channels float64[D, D, R]. Returns how many could start: fewer than
    n where one waits for a message that never arrives.

    The device whose next start is earliest is served first: whatever is not scheduled yet ends no
    earlier, so that nothing can become ready before what is chosen.
    """
    n, devices, rails = len(device), len(tables.server), channels.shape[2]
    offsets = device_offsets(device, devices)
    ready_key, ready_item = np.empty(n), np.empty(n, dtype=np.int64)
    ready = np.zeros(devices, dtype=np.int64)
    idle_at, inputs_at = np.zeros(devices), np.zeros(n)
    free = np.zeros((devices, devices, rails))
    missing = np.empty(n, dtype=np.int64)
    arrival = np.empty(devices)
    seen = np.full(devices, -1, dtype=np.int64)
    part_start, part_finish = np.empty(rails), np.empty(rails)
    for i in range(n):
        missing[i] = tables.inputs_start[i + 1] - tables.inputs_start[i]
        if missing[i] == 0:
            d = device[i]
            ready[d] = push(ready_key, ready_item, offsets[d], ready[d], 0.0, i)
    for served in range(n):
        a, now = -1, np.inf
        for d in range(devices):
            if ready[d] > 0 and max(idle_at[d], ready_key[offsets[d]]) < now:
                a, now = d, max(idle_at[d], ready_key[offsets[d]])
        if a < 0:
            return served
        i = ready_item[offsets[a]]
        ready[a] = pop(ready_key, ready_item, offsets[a], ready[a])
        turn[i] = served
        idle_at[a] = now + tables.seconds[i, a]
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                c = tables.consumers[k]
                b = device[c]
                at = idle_at[a]
                if b != a and tables.bits[e] > 0.0:
                    if seen[b] != e:
                        seen[b] = e
                        arrival[b] = send(
                            tables.path_setup[a, b], tables.path_rate[a, b],
                            tables.paths_queue, tables.setup_seconds, tables.cut_bits,
                            tables.cuts_equally, channels, free, a, b,
                            tables.bits[e], at, part_start, part_finish,
                        )  # fmt: skip
                    at = arrival[b]
                inputs_at[c] = max(inputs_at[c], at)
                missing[c] -= 1
                if missing[c] == 0:
                    ready[b] = push(ready_key, ready_item, offsets[b], ready[b], inputs_at[c], c)
    return n
