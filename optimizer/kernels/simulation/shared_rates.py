"""The event loop for sharings whose rates change during a transfer.

This module decides which parts are under way; rate_filling.py gives them their rates. Under MAX_MIN
and LENDING a lane is a channel (source device, destination device, rail): parts are served first
come, first served. Under MOST_URGENT a lane is a (source server, destination server, rail): the
most urgent part is sent, even before parts that have begun. What was handed over of these
(Tables.window_bits) still leaves: first in the same lane, and beside it in others. Under each, a
part waits p0 from when it is queued, whatever its lane carries meanwhile.
Shortly before its end (Tables.low_water_bits) the next one begins in another lane, beside it.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.heap import pop, push
from placewire.optimizer.kernels.simulation.first_come import MessageLog, device_offsets
from placewire.optimizer.kernels.simulation.handover import arrive, serve_most_urgent
from placewire.optimizer.kernels.simulation.message_urgency import number_messages
from placewire.optimizer.kernels.simulation.progressive_filling import (
    AT_ONCE_SECONDS,
    COLUMNS,
    EVENT_AT,
    LOW_WATER_BITS,
    RATE,
    REMAINING_BITS,
    SINCE,
    UNTIL_BITS,
    WINDOW_BITS,
)
from placewire.optimizer.kernels.simulation.rate_filling import neighbour_gets, share_rail
from placewire.optimizer.kernels.simulation.transfers import cut
from placewire.optimizer.kernels.tables import MAX_MIN, MOST_URGENT, Tables


@compiled
def run_shared_rates(
    tables: Tables,
    lasts: FloatArray,
    highest: FloatArray,
    minimums: FloatArray,
    device: IntArray,
    priority: FloatArray,
    order: IntArray,
    start: FloatArray,
    finish: FloatArray,
    sent: FloatArray,
    position: IntArray,
    messages: MessageLog,
    background_bits: FloatArray,
) -> int:
    """Runs a step by priority, or strictly by `order` (grouped by device) where that has n entries.

    lasts float64[n]: what occupation() returns.
    highest float64[S, S, R] are the rates in force, by which messages are cut; minimums
    float64[S, S, R] are what each pair is sure of (read under LENDING). Fills the arrays as
    run_first_come does, and background_bits float64[S, R], what the neighbour sent and received in
    the step, unless it has no rows. Returns the number of messages, or -1 where some operators can
    never start.
    """
    message_tensor, message_device = messages.tensor, messages.device
    part_start, part_finish = messages.part_start, messages.part_finish
    n, devices = len(device), len(tables.server)
    servers, rails = tables.nic_rates.shape
    urgent = tables.discipline == MOST_URGENT
    ordered = len(order) == n
    offsets = device_offsets(device, devices)
    ready_key, ready_item = np.empty(n), np.empty(n, dtype=np.int64)
    ready, done = np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=np.int64)
    running = np.full(devices, -1, dtype=np.int64)
    until = np.full(devices, np.inf)
    missing = np.empty(n, dtype=np.int64)
    seen = np.full(devices, -1, dtype=np.int64)
    # Messages past the NICs, whose arrival is known when they are queued.
    limit = len(message_tensor)
    path_free = np.zeros((devices, devices))
    arrival_key, arrival_item, arrivals = np.empty(limit), np.empty(limit, dtype=np.int64), 0
    # Parts on rails. The slot of a part is message * rails + rail.
    ends = servers if urgent else devices
    size = ends * ends * rails
    state, sending = np.zeros((size, COLUMNS)), np.zeros(size, dtype=np.bool_)
    source, target = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    active, count = np.empty((rails, ends * ends), dtype=np.int64), np.zeros(rails, dtype=np.int64)
    head, tail = np.full(size, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    following = np.full(limit * rails, -1, dtype=np.int64)
    part_bits = np.zeros((limit, rails))
    parts_left = np.zeros(limit, dtype=np.int64)
    dirty, pairs = np.zeros(rails, dtype=np.bool_), np.zeros((servers, servers))
    # Only under MOST_URGENT: the slots that wait p0, first to last, and each lane's heap of parts
    # that may be sent.
    extra = limit if urgent else 0
    waiting, first_waiting, last_waiting = np.empty(extra * rails, dtype=np.int64), 0, 0
    number, urgency = np.empty(extra, dtype=np.int64), np.empty(extra)
    number_of, message_of = np.empty(extra, dtype=np.int64), np.empty(extra, dtype=np.int64)
    pending, base = np.zeros(size, dtype=np.int64), np.zeros(size + 1, dtype=np.int64)
    pending_key, pending_item = np.empty(extra * rails), np.empty(extra * rails, dtype=np.int64)
    if urgent:
        over_rails = number_messages(tables, device, number, urgency)
        for lane in range(size):
            pair = lane // rails
            base[lane + 1] = base[lane] + over_rails[pair // servers, pair % servers]
            state[lane, WINDOW_BITS] = tables.window_bits[
                pair // servers, pair % servers, lane % rails
            ]
            state[lane, LOW_WATER_BITS] = tables.low_water_bits[pair // servers, lane % rails]
    line, wanted = tables.line_rates, tables.neighbour_rates
    of_each = tables.limit_groups.shape[3]
    groups = np.empty((size, of_each), dtype=np.int64)
    for lane in range(size):
        a, b = lane // rails // ends, lane // rails % ends
        s, t = (a, b) if urgent else (tables.server[a], tables.server[b])
        for j in range(of_each):
            groups[lane, j] = tables.limit_groups[lane % rails, s, t, j]
    capacity = line if tables.discipline == MAX_MIN else tables.limit_capacity
    accounting = len(background_bits) > 0
    neighbour, counted_until = np.zeros(line.shape), 0.0
    if accounting:
        background_bits[:] = 0.0
        for r in range(rails):
            neighbour_gets(line, wanted, groups, r, active[r], 0, sending, state, neighbour)
    for e in range(len(sent)):
        sent[e] = 0.0
    for i in range(n):
        missing[i] = tables.inputs_start[i + 1] - tables.inputs_start[i]
        if missing[i] == 0:
            d = device[i]
            ready[d] = push(ready_key, ready_item, offsets[d], ready[d], -priority[i], i)
    now, handled, queued = 0.0, 0, 0
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
                until[d] = finish[i] = now + lasts[i]
                position[i] = done[d]
                done[d] += 1
        if handled == n:
            return queued
        now = np.inf
        for d in range(devices):
            now = min(now, until[d])
        if arrivals > 0:
            now = min(now, arrival_key[0])
        if first_waiting < last_waiting:
            slot = waiting[first_waiting]
            now = min(now, part_start[slot // rails, slot % rails] + tables.setup_seconds)
        for r in range(rails):
            dirty[r] = False
            for k in range(count[r]):
                now = min(now, state[active[r, k], EVENT_AT])
        if now == np.inf:
            return -1
        if accounting:
            for r in range(rails):
                for s in range(servers):
                    both = neighbour[r, s] + neighbour[r, servers + s]
                    background_bits[s, r] += both * (now - counted_until)
            counted_until = now
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
                    message_tensor[queued] = e
                    message_device[queued] = b
                    for r in range(rails):
                        part_start[queued, r] = -1.0
                        part_finish[queued, r] = -1.0
                    if tables.path_rate[a, b] > 0.0:
                        part_start[queued, 0] = max(now, path_free[a, b])
                        there = (
                            part_start[queued, 0]
                            + tables.path_setup[a, b]
                            + tables.bits[e] / tables.path_rate[a, b]
                        )
                        part_finish[queued, 0] = there
                        path_free[a, b] = there - tables.path_setup[a, b]
                        arrivals = push(arrival_key, arrival_item, 0, arrivals, there, queued)
                        queued += 1
                        continue
                    s, t = tables.server[a], tables.server[b]
                    cut(highest[s, t], tables.bits[e], tables.cuts_equally, part_bits[queued])
                    if urgent:
                        number_of[queued] = number[k]
                        message_of[number[k]] = queued
                    for r in range(rails):
                        if part_bits[queued, r] <= 0.0:
                            continue
                        parts_left[queued] += 1
                        slot = queued * rails + r
                        if urgent:
                            waiting[last_waiting] = slot
                            last_waiting += 1
                            part_start[queued, r] = now
                            continue
                        lane = (a * devices + b) * rails + r
                        part_start[queued, r] = now
                        if head[lane] < 0:
                            head[lane] = slot
                            source[lane], target[lane] = s, t
                            active[r, count[r]] = lane
                            count[r] += 1
                            sending[lane] = False
                            state[lane, EVENT_AT] = now + tables.setup_seconds
                        else:
                            following[tail[lane]] = slot
                        tail[lane] = slot
                    queued += 1
        while arrivals > 0 and arrival_key[0] <= now:
            message = arrival_item[0]
            arrivals = pop(arrival_key, arrival_item, 0, arrivals)
            e, b = message_tensor[message], message_device[message]
            sent[e] = max(sent[e], now)
            ready[b] = arrive(
                tables.consumers[tables.consumers_start[e] : tables.consumers_start[e + 1]],
                device, priority, b, missing, ready_key, ready_item, offsets[b], ready[b],
            )  # fmt: skip
        for r in range(rails):
            for k in range(count[r]):
                dirty[r] = dirty[r] or state[active[r, k], EVENT_AT] <= now
        at = first_waiting
        while at < last_waiting:
            slot = waiting[at]
            if part_start[slot // rails, slot % rails] + tables.setup_seconds > now:
                break
            dirty[slot % rails] = True
            at += 1
        for r in range(rails):
            k = 0
            while dirty[r] and k < count[r]:
                lane = active[r, k]
                if state[lane, EVENT_AT] > now + (AT_ONCE_SECONDS if sending[lane] else 0.0):
                    k += 1
                    continue
                message = head[lane] // rails
                if not sending[lane]:
                    sending[lane] = True
                    state[lane, REMAINING_BITS] = part_bits[message, r]
                    state[lane, RATE] = 0.0
                    state[lane, SINCE] = now
                    state[lane, EVENT_AT] = np.inf
                    k += 1
                    continue
                rest = state[lane, REMAINING_BITS] - state[lane, UNTIL_BITS]
                if urgent and rest > state[lane, RATE] * AT_ONCE_SECONDS:
                    k += 1  # what is handed over changes
                    continue
                part_finish[message, r] = now
                if urgent:
                    head[lane] = -1
                    if pending[lane] > 0:
                        serve_most_urgent(
                            lane, r, now, state, head, base, pending, pending_key, pending_item,
                            message_of, part_bits,
                        )  # fmt: skip
                else:
                    sending[lane] = False
                    head[lane] = following[head[lane]]
                    if head[lane] >= 0:
                        after = head[lane] // rails
                        queued_at = part_start[after, r]
                        state[lane, EVENT_AT] = max(queued_at + tables.setup_seconds, now)
                        part_start[after, r] = max(queued_at, now - tables.setup_seconds)
                if head[lane] < 0:
                    sending[lane] = False
                    count[r] -= 1
                    active[r, k] = active[r, count[r]]
                elif urgent or state[lane, EVENT_AT] > now:
                    k += 1  # else its next part begins at once, in the next round of this loop
                parts_left[message] -= 1
                if parts_left[message] > 0:
                    continue
                e, b = message_tensor[message], message_device[message]
                sent[e] = max(sent[e], now)
                ready[b] = arrive(
                    tables.consumers[tables.consumers_start[e] : tables.consumers_start[e + 1]],
                    device, priority, b, missing, ready_key, ready_item, offsets[b], ready[b],
                )  # fmt: skip
        while first_waiting < last_waiting:
            slot = waiting[first_waiting]
            message, r = slot // rails, slot % rails
            if part_start[message, r] + tables.setup_seconds > now:
                break
            first_waiting += 1
            s = tables.server[device[tables.producer[message_tensor[message]]]]
            t = tables.server[message_device[message]]
            lane = (s * servers + t) * rails + r
            item = number_of[message]
            pending[lane] = push(
                pending_key, pending_item, base[lane], pending[lane], -urgency[item], item
            )
            if head[lane] < 0:
                source[lane], target[lane] = s, t
                sending[lane] = True
                active[r, count[r]] = lane
                count[r] += 1
            if pending_item[base[lane]] == item:
                serve_most_urgent(
                    lane, r, now, state, head, base, pending, pending_key, pending_item, message_of,
                    part_bits,
                )  # fmt: skip
        for r in range(rails):
            if dirty[r]:
                share_rail(
                    tables.discipline, capacity, wanted, groups, minimums, highest, pairs, r, now,
                    active[r], count[r], sending, state, source, target,
                )  # fmt: skip
                if accounting:
                    neighbour_gets(
                        line, wanted, groups, r, active[r], count[r], sending, state, neighbour
                    )
