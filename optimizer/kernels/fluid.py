"""Unshaped networks: transfers that are under way share the NICs max-min fairly, rail by rail."""

# Compiled loops stay one function each: objects and many small calls would cost the gain.
# ruff: noqa: PLR0912, PLR0915

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizer.kernels.compiled import compiled
from optimizer.kernels.heap import pop, push
from optimizer.kernels.schedule import device_offsets
from optimizer.kernels.tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Rows of a channel's state.
EVENT_AT, REMAINING_BITS, RATE, SINCE = 0, 1, 2, 3


@compiled
def cut(tables: Tables, a: int, b: int, bits: float, parts: FloatArray) -> None:
    """parts float64[R]: the bits of a message per rail, in proportion to what both NICs can do; a
    small one goes whole over the fastest rail; slot 0 inside one server."""
    for r in range(len(parts)):
        parts[r] = 0.0
    s, t = tables.server[a], tables.server[b]
    if s == t:
        parts[0] = bits
        return
    total, fastest, widest = 0.0, 0, -1.0
    for r in range(len(parts)):
        narrow = min(tables.nic_rates[s, r], tables.nic_rates[t, r])
        total += narrow
        if narrow > widest:
            fastest, widest = r, narrow
    if total <= 0.0:
        return
    if bits < tables.cut_bits:
        parts[fastest] = bits
        return
    for r in range(len(parts)):
        parts[r] = bits * min(tables.nic_rates[s, r], tables.nic_rates[t, r]) / total


@compiled
def share_rail(
    tables: Tables,
    rail: int,
    now: float,
    active: IntArray,
    count: int,
    sending: NDArray[np.bool_],
    state: FloatArray,
) -> None:
    """Progressive filling over the transmit and receive limits of one rail's NICs.

    active[:count] are channel numbers (a * D + b) * R + rail; those that are past their set-up have
    sending set. Rewrites their rate and the time at which they will be done.
    """
    servers, rails = tables.nic_rates.shape
    devices = len(tables.server)
    spare = np.empty((2, servers))
    users = np.zeros((2, servers))
    for s in range(servers):
        spare[0, s] = tables.nic_rates[s, rail]
        spare[1, s] = tables.nic_rates[s, rail]
    open_flow = np.empty(count, dtype=np.int64)
    open_count = 0
    for k in range(count):
        c = active[k]
        if c % rails != rail or not sending[c]:
            continue
        s, t = tables.server[c // rails // devices], tables.server[c // rails % devices]
        if s == t:
            continue
        state[c, REMAINING_BITS] -= state[c, RATE] * (now - state[c, SINCE])
        state[c, SINCE] = now
        users[0, s] += 1.0
        users[1, t] += 1.0
        open_flow[open_count] = c
        open_count += 1
    while open_count > 0:
        level = np.inf
        for side in range(2):
            for s in range(servers):
                if users[side, s] > 0.0:
                    level = min(level, spare[side, s] / users[side, s])
        tight = np.zeros((2, servers), dtype=np.bool_)
        for side in range(2):
            for s in range(servers):
                tight[side, s] = users[side, s] > 0.0 and spare[side, s] / users[
                    side, s
                ] <= level * (1 + 1e-12)
        kept = 0
        for k in range(open_count):
            c = open_flow[k]
            s, t = tables.server[c // rails // devices], tables.server[c // rails % devices]
            if tight[0, s] or tight[1, t]:
                state[c, RATE] = level
                left = max(state[c, REMAINING_BITS], 0.0)
                state[c, EVENT_AT] = now + left / level if level > 0.0 else np.inf
                spare[0, s] = max(spare[0, s] - level, 0.0)
                spare[1, t] = max(spare[1, t] - level, 0.0)
                users[0, s] -= 1.0
                users[1, t] -= 1.0
            else:
                open_flow[kept] = c
                kept += 1
        open_count = kept


@compiled
def unshaped(
    tables: Tables,
    device: IntArray,
    priority: FloatArray,
    order: IntArray,
    start: FloatArray,
    finish: FloatArray,
    sent: FloatArray,
    position: IntArray,
    message_tensor: IntArray,
    message_device: IntArray,
    part_start: FloatArray,
    part_finish: FloatArray,
) -> int:
    """Event-driven: by priority, or strictly by `order` (grouped by device) where that has n rows.

    A channel (source device, destination device, rail) sends one message at a time, in the order of
    being produced; a message's part first waits p0, then takes its fair share. Fills the arrays as
    schedule.by_order and schedule.by_priority do. Returns the number of messages; -1 where
    operators remain that can never start.
    """
    n, devices = len(device), len(tables.server)
    rails = tables.nic_rates.shape[1]
    ordered = len(order) == n
    offsets = device_offsets(device, devices)
    ready_key, ready_item = np.empty(n), np.empty(n, dtype=np.int64)
    ready, done = np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=np.int64)
    running = np.full(devices, -1, dtype=np.int64)
    until = np.full(devices, np.inf)
    missing = np.empty(n, dtype=np.int64)
    seen = np.full(devices, -1, dtype=np.int64)
    size = devices * devices * rails
    head, tail = np.full(size, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    state, sending = np.zeros((size, 4)), np.zeros(size, dtype=np.bool_)
    limit = len(message_tensor)
    following = np.full(limit * rails, -1, dtype=np.int64)
    part_bits = np.zeros((limit, rails))
    parts_left = np.zeros(limit, dtype=np.int64)
    active, count = np.empty(size, dtype=np.int64), 0
    dirty = np.zeros(rails, dtype=np.bool_)
    for e in range(len(sent)):
        sent[e] = 0.0
    for i in range(n):
        missing[i] = tables.inputs_start[i + 1] - tables.inputs_start[i]
        if missing[i] == 0:
            d = device[i]
            ready[d] = push(ready_key, ready_item, offsets[d], ready[d], -priority[i], i)
    now, handled, messages = 0.0, 0, 0
    while True:
        for d in range(devices):
            if running[d] >= 0:
                continue
            i = -1
            if ordered:
                at = offsets[d] + done[d]
                if at < offsets[d + 1] and missing[order[at]] == 0:
                    i = order[at]
            elif ready[d] > 0:
                i = ready_item[offsets[d]]
                ready[d] = pop(ready_key, ready_item, offsets[d], ready[d])
            if i >= 0:
                running[d] = i
                start[i] = now
                until[d] = finish[i] = now + tables.seconds[i, d]
                position[i] = done[d]
                done[d] += 1
        if handled == n:
            return messages
        now = np.inf
        for d in range(devices):
            now = min(now, until[d])
        for k in range(count):
            now = min(now, state[active[k], EVENT_AT])
        if now == np.inf:
            return -1
        for r in range(rails):
            dirty[r] = False
        for a in range(devices):
            if running[a] < 0 or until[a] > now:
                continue
            i = running[a]
            running[a] = -1
            until[a] = np.inf
            handled += 1
            for o in range(tables.outputs_start[i], tables.outputs_start[i + 1]):
                e = tables.outputs[o]
                for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                    c = tables.consumers[k]
                    b = device[c]
                    if b == a or tables.bits[e] == 0.0:
                        missing[c] -= 1
                        if missing[c] == 0:
                            ready[b] = push(
                                ready_key, ready_item, offsets[b], ready[b], -priority[c], c
                            )
                        continue
                    if seen[b] == e:
                        continue
                    seen[b] = e
                    message_tensor[messages] = e
                    message_device[messages] = b
                    cut(tables, a, b, tables.bits[e], part_bits[messages])
                    for r in range(rails):
                        part_start[messages, r] = -1.0
                        part_finish[messages, r] = -1.0
                        if part_bits[messages, r] <= 0.0:
                            continue
                        parts_left[messages] += 1
                        channel = (a * devices + b) * rails + r
                        slot = messages * rails + r
                        if head[channel] < 0:
                            head[channel] = slot
                            active[count] = channel
                            count += 1
                            sending[channel] = False
                            state[channel, EVENT_AT] = now + tables.setup_seconds
                            part_start[messages, r] = now
                        else:
                            following[tail[channel]] = slot
                        tail[channel] = slot
                    messages += 1
        k = 0
        while k < count:
            channel = active[k]
            if state[channel, EVENT_AT] > now:
                k += 1
                continue
            slot = head[channel]
            message, r = slot // rails, slot % rails
            a, b = channel // rails // devices, channel // rails % devices
            inside = tables.server[a] == tables.server[b]
            if not inside:
                dirty[r] = True
            if not sending[channel]:
                sending[channel] = True
                state[channel, REMAINING_BITS] = part_bits[message, r]
                state[channel, RATE] = tables.intra_rate if inside else 0.0
                state[channel, SINCE] = now
                state[channel, EVENT_AT] = (
                    now + part_bits[message, r] / tables.intra_rate if inside else np.inf
                )
                k += 1
                continue
            part_finish[message, r] = now
            sending[channel] = False
            head[channel] = following[slot]
            if head[channel] >= 0:
                part_start[head[channel] // rails, r] = now
                state[channel, EVENT_AT] = now + tables.setup_seconds
                k += 1
            else:
                count -= 1
                active[k] = active[count]
            parts_left[message] -= 1
            if parts_left[message] > 0:
                continue
            e = message_tensor[message]
            sent[e] = max(sent[e], now)
            for j in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
                c = tables.consumers[j]
                if device[c] == b:
                    missing[c] -= 1
                    if missing[c] == 0:
                        ready[b] = push(
                            ready_key, ready_item, offsets[b], ready[b], -priority[c], c
                        )
        for r in range(rails):
            if dirty[r]:
                share_rail(tables, r, now, active, count, sending, state)
