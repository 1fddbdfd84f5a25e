"""The rates at which concurrent transfers share one rail, for sharings whose rates change during a
transfer. lanes, state and groups: progressive_filling.py.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.progressive_filling import (
    AT_ONCE_SECONDS,
    EVENT_AT,
    HANDED_BITS,
    RATE,
    REMAINING_BITS,
    SINCE,
    SPARE,
    UNTIL_BITS,
    WANTED,
    fill,
)
from placewire.optimizer.kernels.simulation.urgency_filling import drains, fill_by_urgency
from placewire.optimizer.kernels.tables import LENDING, MAX_MIN, MOST_URGENT


@compiled
def share_rail(
    discipline: int, capacity: FloatArray, neighbour_rates: FloatArray, groups: IntArray,
    minimums: FloatArray, highest: FloatArray, pairs: FloatArray, rail: int, now: float,
    lanes: IntArray, count: int, sending: BoolArray, state: FloatArray, source: IntArray,
    target: IntArray,
) -> None:  # fmt: skip
    """Rewrites the rates of the parts that lanes[:count] send on this rail, and when each ends, or
    what is handed over changes.

    capacity float64[R, G]: what the job may have of each group; neighbour_rates float64[R, G]: what
    others want of it beside that. minimums, highest float64[S, S, R]: the least and the most that
    pairs have under LENDING; pairs float64[S, S] is working space. It takes single arrays instead
    of Tables because it is called at every event.
    """
    flows, servers = np.empty(count, dtype=np.int64), len(pairs)
    open_count = 0
    for k in range(count):
        c = lanes[k]
        if sending[c]:
            state[c, REMAINING_BITS] -= state[c, RATE] * (now - state[c, SINCE])
            if discipline == MOST_URGENT and drains(state, c):
                handed = state[c, HANDED_BITS] - state[c, RATE] * (now - state[c, SINCE])
                has_left = state[c, EVENT_AT] <= now + AT_ONCE_SECONDS
                state[c, HANDED_BITS] = 0.0 if has_left else max(handed, 0.0)
            state[c, SINCE] = now
            state[c, RATE] = 0.0
            flows[open_count] = c
            open_count += 1
    if open_count == 0:
        return
    if discipline == MAX_MIN:
        fill_fairly(capacity, neighbour_rates, groups, rail, flows, open_count, state)
    elif discipline == LENDING:
        lend(
            capacity, groups, minimums, highest, pairs, rail, flows, open_count, state, source,
            target,
        )  # fmt: skip
    else:
        fill_by_urgency(capacity, groups, servers, rail, now, flows[:open_count], state, source)
    for k in range(count):
        c = lanes[k]
        if sending[c]:
            left, rate = max(state[c, REMAINING_BITS], 0.0), state[c, RATE]
            if discipline == MOST_URGENT:
                left = min(left, state[c, UNTIL_BITS])
            state[c, EVENT_AT] = now + left / rate if rate > 0.0 else np.inf


@compiled
def fill_fairly(
    capacity: FloatArray,
    neighbour_rates: FloatArray,
    groups: IntArray,
    rail: int,
    flows: IntArray,
    count: int,
    state: FloatArray,
) -> None:
    """Gives max-min fair shares of the NICs, on which others want something as well."""
    room = np.empty((3, capacity.shape[1]))
    crowded = False
    for g in range(capacity.shape[1]):
        room[SPARE, g] = capacity[rail, g]
        room[WANTED, g] = neighbour_rates[rail, g]
        crowded = crowded or neighbour_rates[rail, g] > 0.0
    fill(room, crowded, groups, flows, count, state)


@compiled
def lend(
    capacity: FloatArray,
    groups: IntArray,
    minimums: FloatArray,
    highest: FloatArray,
    pairs: FloatArray,
    rail: int,
    flows: IntArray,
    count: int,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
) -> None:
    """Gives each pair its minimum, and lends what a sender has left equally, to each up to its
    highest rate.

    The flows of one pair share its rate equally. guarantee.lending_ceilings sees to it that no
    receiver and no uplink is oversubscribed. pairs float64[S, S] is working space, all 0 before and
    after.
    """
    servers = len(pairs)
    spare, borrowers = np.empty(servers), np.zeros(servers)
    first = 0  # flows[:first] are the first flows of their pairs, one each
    for k in range(count):
        c = flows[k]
        s, t = source[c], target[c]
        if pairs[s, t] == 0.0:
            if borrowers[s] == 0.0:
                spare[s] = capacity[rail, groups[c, 0]]
            spare[s] -= minimums[s, t, rail]
            borrowers[s] += 1.0
            flows[k], flows[first] = flows[first], c
            first += 1
        pairs[s, t] += 1.0
    kept, settled = first, True
    while settled:
        settled, open_count, kept = False, kept, 0
        for k in range(open_count):
            c = flows[k]
            s, t = source[c], target[c]
            above = max(highest[s, t, rail] - minimums[s, t, rail], 0.0)
            if above * borrowers[s] <= max(spare[s], 0.0):
                state[c, RATE] = (minimums[s, t, rail] + above) / pairs[s, t]
                spare[s] -= above
                borrowers[s] -= 1.0
                settled = True
            else:
                flows[k], flows[kept] = flows[kept], c
                kept += 1
    for k in range(kept):
        c = flows[k]
        s, t = source[c], target[c]
        lent = max(spare[s], 0.0) / borrowers[s]
        state[c, RATE] = (minimums[s, t, rail] + lent) / pairs[s, t]
    for k in range(first):
        pairs[source[flows[k]], target[flows[k]]] = state[flows[k], RATE]
    for k in range(first, count):
        state[flows[k], RATE] = pairs[source[flows[k]], target[flows[k]]]
    for k in range(first):
        pairs[source[flows[k]], target[flows[k]]] = 0.0


@compiled
def neighbour_gets(
    line_rates: FloatArray,
    neighbour_rates: FloatArray,
    groups: IntArray,
    rail: int,
    lanes: IntArray,
    count: int,
    sending: BoolArray,
    state: FloatArray,
    rates: FloatArray,
) -> None:
    """Writes into rates float64[R, G] what the neighbour has now of each group of this rail: what
    it wants, as far as the job leaves that (under max-min sharing this is its fair share)."""
    for g in range(rates.shape[1]):
        rates[rail, g] = line_rates[rail, g]
    for k in range(count):
        c = lanes[k]
        if sending[c]:
            for j in range(groups.shape[1]):
                rates[rail, groups[c, j]] -= state[c, RATE]
    for g in range(rates.shape[1]):
        rates[rail, g] = min(max(rates[rail, g], 0.0), neighbour_rates[rail, g])
