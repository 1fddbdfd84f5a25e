"""When everything happens under fixed rates: by priority, by order, and contention-free."""

# Compiled loops stay one function each: objects and many small calls would cost the gain.
# ruff: noqa: PLR0912, PLR0915

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.heap import pop, push
from placewire.optimizer.kernels.simulation.network import send
from placewire.optimizer.kernels.tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@compiled
def device_offsets(device: IntArray, devices: int) -> IntArray:
    """int64[D + 1]: where each device's operators begin when grouped by device."""
    offsets = np.zeros(devices + 1, dtype=np.int64)
    for i in range(len(device)):
        offsets[device[i] + 1] += 1
    for d in range(devices):
        offsets[d + 1] += offsets[d]
    return offsets


@compiled
def by_priority(
    tables: Tables,
    device: IntArray,
    priority: FloatArray,
    channels: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    sent: FloatArray,
    position: IntArray,
) -> float:
    """List scheduling: a device that is free runs the ready operator of largest priority.

    Fills start, finish float64[n], sent float64[m] (when a tensor has arrived everywhere; 0 where
    it is not sent) and position int64[n] on its device; returns the step's seconds.

    The device whose next start is earliest is served first. Whatever is not scheduled yet starts no
    earlier, so everything that can be ready by then is known.
    """
    n, devices = len(device), len(tables.server)
    rails = channels.shape[2]
    offsets = device_offsets(device, devices)
    # `later` holds operators whose inputs are known to come, by that time; `ready` by -priority.
    later_key, later_item = np.empty(n), np.empty(n, dtype=np.int64)
    ready_key, ready_item = np.empty(n), np.empty(n, dtype=np.int64)
    later, ready = np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=np.int64)
    done = np.zeros(devices, dtype=np.int64)
    idle_at = np.zeros(devices)
    free = np.zeros((devices, devices, rails))
    missing = np.empty(n, dtype=np.int64)
    inputs_at = np.zeros(n)
    arrival = np.empty(devices)
    seen = np.full(devices, -1, dtype=np.int64)
    part_start, part_finish = np.empty(rails), np.empty(rails)
    for e in range(len(sent)):
        sent[e] = 0.0
    for i in range(n):
        missing[i] = tables.inputs_start[i + 1] - tables.inputs_start[i]
        if missing[i] == 0:
            d = device[i]
            later[d] = push(later_key, later_item, offsets[d], later[d], 0.0, i)
    step = 0.0
    for _ in range(n):
        chosen, now = -1, np.inf
        for d in range(devices):
            if ready[d] > 0:
                at = idle_at[d]
            elif later[d] > 0:
                at = max(idle_at[d], later_key[offsets[d]])
            else:
                continue
            if chosen < 0 or at < now:
                chosen, now = d, at
        a, base = chosen, offsets[chosen]
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
        start[i] = now
        finish[i] = now + tables.seconds[i, a]
        idle_at[a] = finish[i]
        step = max(step, finish[i])
        position[i] = done[a]
        done[a] += 1
        for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
            e = tables.outputs[o]
            for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                c = tables.consumers[k]
                b = device[c]
                at = finish[i]
                if b != a and tables.bits[e] > 0.0:
                    if seen[b] != e:
                        seen[b] = e
                        arrival[b] = send(
                            tables.path_setup[a, b], tables.path_rate[a, b],
                            tables.paths_queue, tables.setup_seconds, tables.cut_bits,
                            tables.cuts_equally, channels, free, a, b,
                            tables.bits[e], at, part_start, part_finish,
                        )  # fmt: skip
                        sent[e] = max(sent[e], arrival[b])
                    at = arrival[b]
                inputs_at[c] = max(inputs_at[c], at)
                missing[c] -= 1
                if missing[c] == 0:
                    later[b] = push(later_key, later_item, offsets[b], later[b], inputs_at[c], c)
    return step


@compiled
def by_order(
    tables: Tables,
    device: IntArray,
    order: IntArray,
    offsets: IntArray,
    channels: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    message_tensor: IntArray,
    message_device: IntArray,
    part_start: FloatArray,
    part_finish: FloatArray,
) -> int:
    """Each device runs order[offsets[d]:offsets[d + 1]] one after the other, waiting where it must.

    Fills start, finish and, per message in the order of being sent, its tensor, its destination
    device and the times of its parts float64[M, R]. Returns the number of messages, or -1 where the
    orders wait for each other for ever.

    A channel has one source device, so its messages queue in that device's order, and no event
    queue is needed: every operator is handled once, after what it waits for.
    """
    n, devices = len(device), len(tables.server)
    free = np.zeros((devices, devices, channels.shape[2]))
    missing = np.empty(n, dtype=np.int64)
    for i in range(n):
        missing[i] = tables.inputs_start[i + 1] - tables.inputs_start[i]
    inputs_at, idle_at = np.zeros(n), np.zeros(devices)
    head = np.empty(devices, dtype=np.int64)
    for d in range(devices):
        head[d] = offsets[d]
    slot = np.empty(devices, dtype=np.int64)
    seen = np.full(devices, -1, dtype=np.int64)
    arrival = np.empty(devices)
    handled, messages, moved = 0, 0, True
    while moved:
        moved = False
        for a in range(devices):
            while head[a] < offsets[a + 1] and missing[order[head[a]]] == 0:
                i = order[head[a]]
                head[a] += 1
                handled += 1
                moved = True
                start[i] = max(idle_at[a], inputs_at[i])
                finish[i] = start[i] + tables.seconds[i, a]
                idle_at[a] = finish[i]
                for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
                    e = tables.outputs[o]
                    for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                        c = tables.consumers[k]
                        b = device[c]
                        at = finish[i]
                        if b != a and tables.bits[e] > 0.0:
                            if seen[b] != e:
                                seen[b] = e
                                slot[b] = messages
                                arrival[b] = send(
                                    tables.path_setup[a, b], tables.path_rate[a, b],
                                    tables.paths_queue, tables.setup_seconds, tables.cut_bits,
                                    tables.cuts_equally, channels, free, a, b, tables.bits[e], at,
                                    part_start[messages], part_finish[messages],
                                )  # fmt: skip
                                message_tensor[messages] = e
                                message_device[messages] = b
                                messages += 1
                            at = arrival[b]
                        inputs_at[c] = max(inputs_at[c], at)
                        missing[c] -= 1
    return messages if handled == n else -1


@compiled
def contention_free(
    tables: Tables,
    device: IntArray,
    order: IntArray,
    rates: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    sent: FloatArray,
    position: IntArray,
) -> float:
    """Thesis (3.4)-(3.6): a transfer takes p0 + bytes / b and never waits for another.

    order int64[n] is one topological sort of all operators; rates float64[S, S, R].
    """
    devices = len(tables.server)
    idle_at = np.zeros(devices)
    done = np.zeros(devices, dtype=np.int64)
    for e in range(len(sent)):
        sent[e] = 0.0
    step = 0.0
    for i in order:
        a = device[i]
        at = idle_at[a]
        for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            e = tables.inputs[k]
            j = tables.producer[e]
            took = 0.0
            if device[j] != a and tables.bits[e] > 0.0:
                setup, rate = tables.path_setup[device[j], a], tables.path_rate[device[j], a]
                if rate == 0.0:
                    s, t = tables.server[device[j]], tables.server[a]
                    setup = tables.setup_seconds
                    for r in range(rates.shape[2]):
                        rate += rates[s, t, r]
                took = setup + tables.bits[e] / rate if rate > 0.0 else np.inf
                sent[e] = max(sent[e], finish[j] + took)
            at = max(at, finish[j] + took)
        start[i] = at
        finish[i] = at + tables.seconds[i, a]
        idle_at[a] = finish[i]
        position[i] = done[a]
        done[a] += 1
        step = max(step, finish[i])
    return step
