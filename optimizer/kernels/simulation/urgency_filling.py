"""Rates under MOST_URGENT, and what a sender has handed over of messages that are not its most
urgent one. lanes, state and groups: progressive_filling.py.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.progressive_filling import (
    AT_ONCE_SECONDS,
    GIVEN_AT,
    HANDED_BITS,
    HAS_TURN,
    LOW_WATER_BITS,
    NEXT_NUMBER,
    NEXT_URGENCY,
    NUMBER,
    RATE,
    REMAINING_BITS,
    SINCE,
    SPARE,
    TURN_AT,
    UNTIL_BITS,
    URGENCY,
    WINDOW_BITS,
    fill,
)

# A time plus this part of it is a later time, for certain.
_CLOCK_TICK = 1e-15
# Less than this part of a NIC, or of a message, is rounding.
_NOTHING = 1e-9


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
