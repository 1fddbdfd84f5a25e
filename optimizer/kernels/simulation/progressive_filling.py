"""A lane's state, and progressive filling: the rates of concurrent transfers rise together.

A lane sends at most one part at a time. state float64[lanes, COLUMNS] describes that part; source
and target int64[lanes] are the servers between which it goes. Groups of pairs limit transfers
(network/nics.py, RateLimits): groups int64[lanes, K] names those of each lane, first that of the
transmitting NIC, and capacity float64[R, G] is what each group carries.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
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
# A shorter time is rounding: a part that would end within it has ended.
AT_ONCE_SECONDS = 1e-9
# Rows of the working space of the groups while a rail is filled.
SPARE, USERS, WANTED = 0, 1, 2


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
