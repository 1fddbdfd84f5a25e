"""How the transfers under way share one rail's NICs, under each sharing without fixed rates.

A lane is a place from which at most one part is being sent at a time; state float64[lanes, 6] is
what is known of that part, source and target int64[lanes] the servers it goes between.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import FAIR, LENT
from placewire.optimizer.problem import NEIGHBOUR_FLOWS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Columns of a lane's state. NEGLECT is smallest for the most urgent part, and NUMBER breaks ties.
EVENT_AT, REMAINING_BITS, RATE, SINCE, NEGLECT, NUMBER = 0, 1, 2, 3, 4, 5
COLUMNS = 6
# Rows of what is known of the NICs while a rail is filled, two each: to transmit and to receive.
SPARE, USERS, WANTED = 0, 2, 4
# What is left of a NIC below this part of it is rounding.
_NOTHING = 1e-9


@compiled
def share_rail(
    discipline: int,
    limits: FloatArray,
    neighbour_rates: FloatArray,
    minimums: FloatArray,
    highest: FloatArray,
    pairs: FloatArray,
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
    where they are lent to; pairs float64[S, S] is room to work in. Single arrays instead of Tables:
    this is called at every event.
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
    if open_count == 0:
        return
    if discipline == FAIR:
        fill_fairly(limits, neighbour_rates, rail, flows, open_count, state, source, target)
    elif discipline == LENT:
        lend(limits, minimums, highest, pairs, rail, flows, open_count, state, source, target)
    else:
        fill_by_urgency(limits, rail, flows, open_count, state, source, target)
    for k in range(count):
        c = lanes[k]
        if sending[c]:
            left, rate = max(state[c, REMAINING_BITS], 0.0), state[c, RATE]
            state[c, EVENT_AT] = now + left / rate if rate > 0.0 else np.inf


@compiled
def fill(
    nics: FloatArray,
    crowded: bool,
    flows: IntArray,
    open_count: int,
    state: FloatArray,
    source: IntArray,
    target: IntArray,
) -> None:
    """Progressive filling: all flows[:open_count] rise alike until a NIC of theirs is full.

    nics float64[6, S], two rows each, to transmit and to receive: what is SPARE, which is used up;
    room for the number of USERS; and, if crowded, what is WANTED by NEIGHBOUR_FLOWS more flows
    without a far end, which rise on that side until they have it together. Overwrites flows.
    """
    servers = nics.shape[1]
    for side in range(2):
        for s in range(servers):
            with_others = crowded and nics[WANTED + side, s] > 0.0
            nics[USERS + side, s] = NEIGHBOUR_FLOWS if with_others else 0.0
    for k in range(open_count):
        nics[USERS, source[flows[k]]] += 1.0
        nics[USERS + 1, target[flows[k]]] += 1.0
    while open_count > 0:
        level = np.inf
        for k in range(open_count):
            c = flows[k]
            s, t = source[c], target[c]
            # Where this flow alone would have to stop; it does so if none has to before.
            state[c, RATE] = min(
                nics[SPARE, s] / nics[USERS, s], nics[SPARE + 1, t] / nics[USERS + 1, t]
            )
            level = min(level, state[c, RATE])
        if crowded:
            level = fill_beside(nics, level)
        kept = 0
        for k in range(open_count):
            c = flows[k]
            if state[c, RATE] > level * (1 + 1e-12):
                flows[kept] = c
                kept += 1
                continue
            s, t = source[c], target[c]
            state[c, RATE] = level
            nics[SPARE, s] = max(nics[SPARE, s] - level, 0.0)
            nics[SPARE + 1, t] = max(nics[SPARE + 1, t] - level, 0.0)
            nics[USERS, s] -= 1.0
            nics[USERS + 1, t] -= 1.0
        open_count = kept


@compiled
def fill_beside(nics: FloatArray, level: float) -> float:
    """The flows are about to rise to this level: returns the level, not above it, at which the
    first neighbour stops, and takes what the neighbours that stop there have."""
    for side in range(2):
        for s in range(nics.shape[1]):
            if nics[WANTED + side, s] > 0.0:
                full = nics[SPARE + side, s] / nics[USERS + side, s]
                level = min(level, full, nics[WANTED + side, s] / NEIGHBOUR_FLOWS)
    for side in range(2):
        for s in range(nics.shape[1]):
            if nics[WANTED + side, s] > 0.0:
                full = nics[SPARE + side, s] / nics[USERS + side, s]
                if min(full, nics[WANTED + side, s] / NEIGHBOUR_FLOWS) <= level * (1 + 1e-12):
                    taken = NEIGHBOUR_FLOWS * level
                    nics[SPARE + side, s] = max(nics[SPARE + side, s] - taken, 0.0)
                    nics[USERS + side, s] -= NEIGHBOUR_FLOWS
                    nics[WANTED + side, s] = 0.0
    return level


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
    nics = np.empty((6, servers))
    crowded = False
    for s in range(servers):
        nics[SPARE, s] = nics[SPARE + 1, s] = limits[s, rail]
        nics[WANTED, s] = nics[WANTED + 1, s] = neighbour_rates[s, rail]
        crowded = crowded or neighbour_rates[s, rail] > 0.0
    fill(nics, crowded, flows, count, state, source, target)


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
    nics = np.empty((6, servers))
    for s in range(servers):
        nics[SPARE, s] = nics[SPARE + 1, s] = limits[s, rail]
    chosen = np.empty(servers, dtype=np.int64)
    tried = 0  # flows[:tried] have had their round
    while True:
        for s in range(servers):
            chosen[s] = -1
        for k in range(tried, count):
            c = flows[k]
            s = source[c]
            if nics[SPARE, s] <= _NOTHING * limits[s, rail]:
                continue
            other = chosen[s]
            if (
                other < 0
                or state[c, NEGLECT] < state[other, NEGLECT]
                or (
                    state[c, NEGLECT] == state[other, NEGLECT]
                    and state[c, NUMBER] < state[other, NUMBER]
                )
            ):
                chosen[s] = c
        picked = tried
        for k in range(tried, count):
            c = flows[k]
            if chosen[source[c]] == c:
                flows[k], flows[picked] = flows[picked], c
                picked += 1
        if picked == tried:
            return
        fill(nics, False, flows[tried:picked], picked - tried, state, source, target)
        tried = picked


@compiled
def lend(
    limits: FloatArray,
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
    """Each pair its minimum; what a sender has left is lent equally, to each up to its highest.

    The flows of one pair share its rate equally. Receivers cannot be oversubscribed: `ceilings`.
    pairs float64[S, S] is room to work in, all 0 before and after.
    """
    servers = len(limits)
    spare, borrowers = np.empty(servers), np.zeros(servers)
    for s in range(servers):
        spare[s] = limits[s, rail]
    first = 0  # flows[:first] stand for a pair each, the others come after one of theirs
    for k in range(count):
        c = flows[k]
        s, t = source[c], target[c]
        if pairs[s, t] == 0.0:
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
            room = max(highest[s, t, rail] - minimums[s, t, rail], 0.0)
            if room * borrowers[s] <= max(spare[s], 0.0):
                state[c, RATE] = (minimums[s, t, rail] + room) / pairs[s, t]
                spare[s] -= room
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
