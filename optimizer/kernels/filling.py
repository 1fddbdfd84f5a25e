"""How the transfers under way share one rail's NICs, under each sharing without fixed rates.

A lane is a place from which at most one part is being sent at a time; state float64[lanes, 6] is
what is known of that part, source and target int64[lanes] the servers it goes between.
"""

# Compiled loops stay one function each: objects and many small calls would cost the gain.
# ruff: noqa: PLR0912

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizer.kernels.compiled import compiled
from optimizer.kernels.tables import FAIR, LENT
from optimizer.problem import NEIGHBOUR_FLOWS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Columns of a lane's state. NEGLECT is smallest for the most urgent part, and NUMBER breaks ties.
EVENT_AT, REMAINING_BITS, RATE, SINCE, NEGLECT, NUMBER = 0, 1, 2, 3, 4, 5
COLUMNS = 6
# What is left of a NIC below this part of it is rounding.
_NOTHING = 1e-9


@compiled
def share_rail(
    discipline: int,
    limits: FloatArray,
    neighbour_rates: FloatArray,
    minimums: FloatArray,
    highest: FloatArray,
    rail: int,
    now: float,
    lanes: IntArray,
    count: int,
    sending: BoolArray,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
) -> None:
    """Rewrites the rate of what lanes[:count] are sending on this rail, and when it will be done.

    limits float64[S, R]: what the job may have of each NIC in each direction; neighbour_rates: what
    others want of it beside that. minimums, highest float64[S, S, R]: what pairs must and may have,
    where they are lent to. Single arrays instead of Tables: this is called at every event.
    """
    flows = np.empty(count, dtype=np.int64)
    open_count = 0
    for k in range(count):
        c = lanes[k]
        if sending[c]:
            state[c, REMAINING_BITS] -= state[c, RATE] * (now - state[c, SINCE])
            state[c, SINCE] = now
            state[c, RATE] = 0.0
            flows[open_count] = c
            open_count += 1
    if discipline == FAIR:
        fill_fairly(limits, neighbour_rates, rail, flows, open_count, state, source, target)
    elif discipline == LENT:
        lend(limits, minimums, highest, rail, flows, open_count, state, source, target)
    else:
        fill_by_urgency(limits, rail, flows, open_count, state, source, target)
    for k in range(count):
        c = lanes[k]
        if sending[c]:
            left, rate = max(state[c, REMAINING_BITS], 0.0), state[c, RATE]
            state[c, EVENT_AT] = now + left / rate if rate > 0.0 else np.inf


@compiled
def fill(
    flows: IntArray,
    open_count: int,
    spare: FloatArray,
    wanted: FloatArray,
    crowded: bool,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
) -> None:
    """Progressive filling: all flows[:open_count] rise alike until a NIC of theirs is full.

    spare float64[2, S] is what the NICs have to transmit and to receive, and is used up. crowded:
    NEIGHBOUR_FLOWS more flows, without a far end, rise on each NIC side until they have what is
    wanted float64[2, S] together. Overwrites flows.
    """
    servers = spare.shape[1]
    users = np.zeros((2, servers))
    tight = np.empty((2, servers), dtype=np.bool_)
    for k in range(open_count):
        users[0, source[flows[k]]] += 1.0
        users[1, target[flows[k]]] += 1.0
    if crowded:
        for side in range(2):
            for s in range(servers):
                if wanted[side, s] > 0.0:
                    users[side, s] += NEIGHBOUR_FLOWS
    while open_count > 0:
        level = np.inf
        for side in range(2):
            for s in range(servers):
                if users[side, s] > 0.0:
                    level = min(level, spare[side, s] / users[side, s])
                if crowded and wanted[side, s] > 0.0:
                    level = min(level, wanted[side, s] / NEIGHBOUR_FLOWS)
        for side in range(2):
            for s in range(servers):
                tight[side, s] = users[side, s] > 0.0 and spare[side, s] / users[
                    side, s
                ] <= level * (1 + 1e-12)
        if crowded:
            for side in range(2):
                for s in range(servers):
                    if wanted[side, s] > 0.0 and (
                        tight[side, s] or wanted[side, s] <= NEIGHBOUR_FLOWS * level * (1 + 1e-12)
                    ):
                        spare[side, s] = max(spare[side, s] - NEIGHBOUR_FLOWS * level, 0.0)
                        users[side, s] -= NEIGHBOUR_FLOWS
                        wanted[side, s] = 0.0
        kept = 0
        for k in range(open_count):
            c = flows[k]
            s, t = source[c], target[c]
            if tight[0, s] or tight[1, t]:
                state[c, RATE] = level
                spare[0, s] = max(spare[0, s] - level, 0.0)
                spare[1, t] = max(spare[1, t] - level, 0.0)
                users[0, s] -= 1.0
                users[1, t] -= 1.0
            else:
                flows[kept] = c
                kept += 1
        open_count = kept


@compiled
def fill_fairly(
    limits: FloatArray,
    neighbour_rates: FloatArray,
    rail: int,
    flows: IntArray,
    count: int,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
) -> None:
    """Max-min fair shares of the NICs as they are, beside what others want of them."""
    servers = len(limits)
    spare, wanted = np.empty((2, servers)), np.empty((2, servers))
    crowded = False
    for s in range(servers):
        spare[0, s] = spare[1, s] = limits[s, rail]
        wanted[0, s] = wanted[1, s] = neighbour_rates[s, rail]
        crowded = crowded or wanted[0, s] > 0.0
    fill(flows, count, spare, wanted, crowded, state, source, target)


@compiled
def fill_by_urgency(
    limits: FloatArray,
    rail: int,
    flows: IntArray,
    count: int,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
) -> None:
    """Each sender's most urgent part first; receivers share fairly between senders.

    Round after round, every sender that has something left takes its most urgent part among the
    receivers that it has not tried yet, and the parts of the round fill what the NICs have left.
    """
    servers = len(limits)
    spare, wanted = np.empty((2, servers)), np.empty((0, 0))
    for s in range(servers):
        spare[0, s] = spare[1, s] = limits[s, rail]
    chosen = np.empty(servers, dtype=np.int64)
    picked = np.empty(servers, dtype=np.int64)
    while count > 0:
        for s in range(servers):
            chosen[s] = -1
        for k in range(count):
            c = flows[k]
            other = chosen[source[c]]
            if (
                other < 0
                or state[c, NEGLECT] < state[other, NEGLECT]
                or (
                    state[c, NEGLECT] == state[other, NEGLECT]
                    and state[c, NUMBER] < state[other, NUMBER]
                )
            ):
                chosen[source[c]] = c
        kept, round_count = 0, 0
        for k in range(count):
            c = flows[k]
            s = source[c]
            if spare[0, s] <= _NOTHING * limits[s, rail]:
                continue
            if chosen[s] == c:
                picked[round_count] = c
                round_count += 1
            else:
                flows[kept] = c
                kept += 1
        count = kept
        fill(picked, round_count, spare, wanted, False, state, source, target)


@compiled
def lend(
    limits: FloatArray,
    minimums: FloatArray,
    highest: FloatArray,
    rail: int,
    flows: IntArray,
    count: int,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
) -> None:
    """Each pair its minimum; what a sender has left is lent equally, to each up to its highest.

    The flows of one pair share its rate equally. Receivers cannot be oversubscribed: `ceilings`.
    """
    servers = len(limits)
    users = np.zeros((servers, servers))
    extra = np.empty(servers)
    for k in range(count):
        users[source[flows[k]], target[flows[k]]] += 1.0
    for s in range(servers):
        spare, borrowers = limits[s, rail], 0
        for t in range(servers):
            extra[t] = -1.0
            if users[s, t] > 0.0:
                spare -= minimums[s, t, rail]
                borrowers += 1
        spare = max(spare, 0.0)
        while borrowers > 0:
            level, settled = spare / borrowers, False
            for t in range(servers):
                room = highest[s, t, rail] - minimums[s, t, rail]
                if users[s, t] > 0.0 and extra[t] < 0.0 and room <= level:
                    extra[t] = max(room, 0.0)
                    spare = max(spare - extra[t], 0.0)
                    borrowers -= 1
                    settled = True
            if not settled:
                for t in range(servers):
                    if users[s, t] > 0.0 and extra[t] < 0.0:
                        extra[t] = level
                borrowers = 0
        for t in range(servers):
            if users[s, t] > 0.0:
                users[s, t] = (minimums[s, t, rail] + extra[t]) / users[s, t]
    for k in range(count):
        state[flows[k], RATE] = users[source[flows[k]], target[flows[k]]]


@compiled
def neighbour_gets(
    line_rates: FloatArray,
    neighbour_rates: FloatArray,
    rail: int,
    lanes: IntArray,
    count: int,
    sending: BoolArray,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
    rates: FloatArray,
) -> None:
    """rates float64[2, S, R]: what the neighbour now transmits and receives on this rail: what it
    wants, as far as the job leaves it (under fair sharing that is its fair share)."""
    for s in range(rates.shape[1]):
        rates[0, s, rail] = rates[1, s, rail] = line_rates[s, rail]
    for k in range(count):
        c = lanes[k]
        if sending[c]:
            rates[0, source[c], rail] -= state[c, RATE]
            rates[1, target[c], rail] -= state[c, RATE]
    for side in range(2):
        for s in range(rates.shape[1]):
            left = max(rates[side, s, rail], 0.0)
            rates[side, s, rail] = min(left, neighbour_rates[s, rail])
