"""How concurrent transfers share one rail, for sharings whose rates change during a transfer.

A lane sends at most one part at a time. state float64[lanes, COLUMNS] describes that part; source
and target int64[lanes] are the servers between which it goes. Groups of pairs limit transfers
(network/nics.py, RateLimits): groups int64[lanes, K] names those of each lane, first that of the
transmitting NIC, and capacity float64[R, G] is what each group carries.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import LENDING, MAX_MIN, MOST_URGENT
from placewire.optimizer.network.nics import NEIGHBOUR_FLOWS

# Columns of a lane's state. The part of largest URGENCY is the most urgent; ties go by the smaller
# NUMBER. The columns after these are for sending by urgency only. HAS_TURN is 1 while the lane is
# the most urgent one of its sender. Then WINDOW_BITS of what it has left are handed over, but
# only HANDED_BITS at the time TURN_AT, when its turn or its part began. Without a turn
# HANDED_BITS of it, or of a part that it overtook, were handed over at the time SINCE. When no more
# than LOW_WATER_BITS are left of a lane that has its turn, half a window is handed over of the next
# most urgent lane of its sender, unless a more urgent part waits in the lane itself: the first one
# that waits there is of NEXT_URGENCY, -inf where none does, and NEXT_NUMBER. That half is handed
# over at the time GIVEN_AT, and taken back where another lane becomes the next one at that time.
# UNTIL_BITS after SINCE what is handed over changes; inf: never.
EVENT_AT, REMAINING_BITS, RATE, SINCE, URGENCY, NUMBER = range(6)
WINDOW_BITS, HAS_TURN, TURN_AT, HANDED_BITS, LOW_WATER_BITS, UNTIL_BITS = range(6, 12)
GIVEN_AT, NEXT_URGENCY, NEXT_NUMBER, COLUMNS = range(12, 16)
# What lasts no longer than this is rounding: a part that would end within this time has ended.
AT_ONCE_SECONDS = 1e-9
# A time plus this part of it is a later time, for certain.
_CLOCK_TICK = 1e-15
# Rows of the working space of the groups while a rail is filled.
SPARE, USERS, WANTED = 0, 1, 2
# Less than this part of a NIC, or of a message, is rounding.
_NOTHING = 1e-9


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
def fill(
    room: FloatArray,
    crowded: bool,
    groups: IntArray,
    flows: IntArray,
    open_count: int,
    state: FloatArray,
) -> None:
    """Progressive filling: the rates of flows[:open_count] rise together, until each stops where a
    group of its flow is full.

    room float64[3, G]: what is SPARE of each group, which is used up; the number of USERS of each;
    and, if crowded, what is WANTED of each by NEIGHBOUR_FLOWS flows of others, which rise as well
    until they have that together and which no other group limits. Overwrites flows.
    """
    of_each = groups.shape[1]
    for g in range(room.shape[1]):
        room[USERS, g] = NEIGHBOUR_FLOWS if crowded and room[WANTED, g] > 0.0 else 0.0
    for k in range(open_count):
        for j in range(of_each):
            room[USERS, groups[flows[k], j]] += 1.0
    while open_count > 0:
        level = np.inf
        for k in range(open_count):
            c = flows[k]
            # The level at which this flow would stop if no other stopped before it.
            rate = np.inf
            for j in range(of_each):
                g = groups[c, j]
                rate = min(rate, room[SPARE, g] / room[USERS, g])
            state[c, RATE] = rate
            level = min(level, rate)
        if crowded:
            level = fill_beside(room, level)
        kept = 0
        for k in range(open_count):
            c = flows[k]
            if state[c, RATE] > level * (1 + 1e-12):
                flows[kept] = c
                kept += 1
                continue
            state[c, RATE] = level
            for j in range(of_each):
                g = groups[c, j]
                room[SPARE, g] = max(room[SPARE, g] - level, 0.0)
                room[USERS, g] -= 1.0
        open_count = kept


@compiled
def fill_beside(room: FloatArray, level: float) -> float:
    """Returns the level at which the first flows of others stop, or `level` where none stops below
    it; takes from each group the share of those that stop there."""
    for g in range(room.shape[1]):
        if room[WANTED, g] > 0.0:
            full = room[SPARE, g] / room[USERS, g]
            level = min(level, full, room[WANTED, g] / NEIGHBOUR_FLOWS)
    for g in range(room.shape[1]):
        if room[WANTED, g] > 0.0:
            full = room[SPARE, g] / room[USERS, g]
            if min(full, room[WANTED, g] / NEIGHBOUR_FLOWS) <= level * (1 + 1e-12):
                room[SPARE, g] = max(room[SPARE, g] - NEIGHBOUR_FLOWS * level, 0.0)
                room[USERS, g] -= NEIGHBOUR_FLOWS
                room[WANTED, g] = 0.0
    return level


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
def drains(state: FloatArray, lane: int) -> bool:
    """Whether the lane sends what was handed over of it though it has no turn."""
    return bool(state[lane, HAS_TURN] == 0.0 and state[lane, HANDED_BITS] > 0.0)


@compiled
def handed_over(state: FloatArray, lane: int, now: float, left: float) -> float:
    """Returns how many of the `left` bits that a lane still sends are handed over by now."""
    known: float = state[lane, HANDED_BITS]
    if state[lane, HAS_TURN] == 0.0:
        known = max(known - state[lane, RATE] * (now - state[lane, SINCE]), 0.0)
        if now - state[lane, GIVEN_AT] <= AT_ONCE_SECONDS:
            known = 0.0
    elif now - state[lane, TURN_AT] > AT_ONCE_SECONDS:
        known = state[lane, WINDOW_BITS]
    return known if known < left * (1 - _NOTHING) else left  # no more is left than rounding


@compiled
def _first_of(
    flows: IntArray, start: int, state: FloatArray, source: IntArray, first: IntArray
) -> None:
    """Writes into first int64[S] the most urgent lane of each sender among flows[start:]; -1 where
    it has none."""
    for s in range(len(first)):
        first[s] = -1
    for k in range(start, len(flows)):
        c = flows[k]
        if _is_more_urgent(state, c, first[source[c]]):
            first[source[c]] = c


@compiled
def _is_more_urgent(state: FloatArray, lane: int, other: int) -> bool:
    """other: -1 is none."""
    if other < 0 or state[lane, URGENCY] != state[other, URGENCY]:
        return bool(other < 0 or state[lane, URGENCY] > state[other, URGENCY])
    return bool(state[lane, NUMBER] < state[other, NUMBER])


@compiled
def _has_next(state: FloatArray, lane: int, other: int) -> bool:
    """Whether a part waits in the lane that is more urgent than what another lane sends."""
    if state[lane, NEXT_URGENCY] != state[other, URGENCY]:
        return bool(state[lane, NEXT_URGENCY] > state[other, URGENCY])
    return bool(state[lane, NEXT_NUMBER] < state[other, NUMBER])


@compiled
def _hand_over(
    flows: IntArray, state: FloatArray, source: IntArray, first: IntArray, sends: FloatArray,
    now: float,
) -> None:  # fmt: skip
    """Hands over half a window of each sender's second lane where no more than the low water is
    left of its first one. Writes UNTIL_BITS of all.

    first int64[S]: the most urgent lane of each sender, the only one that has its turn. sends
    float64[S]: what a sender's NIC carries.
    """
    # Rounding would let an event that is later by less than this happen now, again and again.
    tick = now * _CLOCK_TICK
    second = np.full(len(first), -1, dtype=np.int64)
    for k in range(len(flows)):
        c = flows[k]
        if first[source[c]] != c and _is_more_urgent(state, c, second[source[c]]):
            second[source[c]] = c
    for s in range(len(first)):
        c, following = first[s], second[s]
        if c >= 0:
            state[c, UNTIL_BITS] = np.inf
        if following < 0 or state[c, LOW_WATER_BITS] == 0.0 or _has_next(state, c, following):
            continue
        above = state[c, REMAINING_BITS] - state[c, LOW_WATER_BITS]
        half, at_once = state[following, WINDOW_BITS] / 2, sends[s] * (AT_ONCE_SECONDS + tick)
        if above > at_once:
            state[c, UNTIL_BITS] = above
        elif state[following, HANDED_BITS] == 0.0 and half > at_once:
            left = max(state[following, REMAINING_BITS], 0.0)
            state[following, HANDED_BITS] = half if half < left * (1 - _NOTHING) else left
            state[following, GIVEN_AT] = now
    for k in range(len(flows)):
        c = flows[k]
        if state[c, HAS_TURN] == 0.0:
            handed = state[c, HANDED_BITS]
            state[c, UNTIL_BITS] = handed if handed > 0.0 else np.inf


@compiled
def fill_by_urgency(
    capacity: FloatArray, groups: IntArray, servers: int, rail: int, now: float, flows: IntArray,
    state: FloatArray, source: IntArray,
) -> None:  # fmt: skip
    """Serves each sender's most urgent part first; receivers share fairly between senders.

    In each round, every sender with something left of its NIC takes its most urgent part that has
    had no round yet, and the parts of the round share what the NICs have left. What was handed over
    of parts that are not the most urgent of their sender is in the first round, too.
    """
    chosen = np.empty(servers, dtype=np.int64)
    _first_of(flows, 0, state, source, chosen)
    sends = np.empty(servers)
    for k in range(len(flows)):
        c = flows[k]
        sends[source[c]] = capacity[rail, groups[c, 0]]
        if state[c, HAS_TURN] == 0.0 and now - state[c, GIVEN_AT] <= AT_ONCE_SECONDS:
            state[c, HANDED_BITS] = 0.0
        has_turn = chosen[source[c]] == c
        if has_turn and state[c, HAS_TURN] == 0.0:
            state[c, HAS_TURN], state[c, TURN_AT] = 1.0, now
        elif not has_turn and state[c, HAS_TURN] > 0.0:
            left = max(state[c, REMAINING_BITS], 0.0)
            state[c, HANDED_BITS] = handed_over(state, c, now, left)
            state[c, HAS_TURN] = 0.0
    _hand_over(flows, state, source, chosen, sends, now)
    room = np.empty((3, capacity.shape[1]))
    for g in range(capacity.shape[1]):
        room[SPARE, g] = capacity[rail, g]
    tried = 0  # flows[:tried] have had their round
    while True:
        picked = tried
        for k in range(tried, len(flows)):
            c = flows[k]
            if chosen[source[c]] == c or (tried == 0 and drains(state, c)):
                flows[k], flows[picked] = flows[picked], c
                picked += 1
        if picked == tried:
            return
        fill(room, False, groups, flows[tried:picked], picked - tried, state)
        tried = picked
        _first_of(flows, tried, state, source, chosen)
        for s in range(servers):
            if chosen[s] >= 0:
                transmit = groups[chosen[s], 0]
                if room[SPARE, transmit] <= _NOTHING * capacity[rail, transmit]:
                    chosen[s] = -1


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
