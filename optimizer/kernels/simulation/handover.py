"""The two ends of a transfer: which part a lane sends next, and what an arrival makes ready."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.heap import pop, push
from placewire.optimizer.kernels.simulation.progressive_filling import (
    AT_ONCE_SECONDS,
    EVENT_AT,
    HANDED_BITS,
    HAS_TURN,
    NEXT_NUMBER,
    NEXT_URGENCY,
    NUMBER,
    RATE,
    REMAINING_BITS,
    SINCE,
    TURN_AT,
    URGENCY,
)
from placewire.optimizer.kernels.simulation.urgency_filling import handed_over


@compiled
def arrive(
    consumers: IntArray,
    device: IntArray,
    priority: FloatArray,
    b: int,
    missing: IntArray,
    ready_key: FloatArray,
    ready_item: IntArray,
    base: int,
    ready: int,
) -> int:
    """Takes note that the tensor of these consumers is on device b; returns how many operators are
    now ready there, in the heap that begins at base."""
    for c in consumers:
        if device[c] == b:
            missing[c] -= 1
            if missing[c] == 0:
                ready = push(ready_key, ready_item, base, ready, -priority[c], c)
    return ready


@compiled
def serve_most_urgent(
    lane: int,
    rail: int,
    now: float,
    state: FloatArray,
    head: IntArray,
    base: IntArray,
    pending: IntArray,
    pending_key: FloatArray,
    pending_item: IntArray,
    message_of: IntArray,
    part_bits: FloatArray,
) -> None:
    """Makes the most urgent pending part the one that the lane sends, unless that is less urgent.

    What was handed over of the part under way leaves before the part that overtakes it; part_bits
    keeps what is left beside that. A part of which no more is left is not overtaken, but becomes as
    urgent as what waits for it.
    """
    rails, first, handed = part_bits.shape[1], base[lane], 0.0
    _note_next(lane, first, state, pending, pending_key, pending_item)
    key, item = pending_key[first], pending_item[first]
    if head[lane] >= 0:
        own_key, own = -state[lane, URGENCY], int(state[lane, NUMBER])
        if own_key < key or (own_key == key and own < item):
            return
        left = state[lane, REMAINING_BITS] - state[lane, RATE] * (now - state[lane, SINCE])
        handed = handed_over(state, lane, now, left)
        if handed > 0.0 and left <= handed + state[lane, RATE] * AT_ONCE_SECONDS:
            # What is left beside it is rounding, which must not wait for another turn.
            state[lane, REMAINING_BITS] -= max(left - handed, 0.0)
            if state[lane, HAS_TURN] == 0.0:
                state[lane, HANDED_BITS] = state[lane, REMAINING_BITS]
            state[lane, URGENCY], state[lane, NUMBER] = -key, item
            return
        part_bits[head[lane] // rails, rail] = max(left - handed, 0.0)
        pending[lane] = push(pending_key, pending_item, first, pending[lane], own_key, own)
    else:
        state[lane, HAS_TURN] = 0.0
    pending[lane] = pop(pending_key, pending_item, first, pending[lane])
    head[lane] = message_of[item] * rails + rail
    state[lane, REMAINING_BITS] = part_bits[message_of[item], rail] + handed
    state[lane, TURN_AT], state[lane, HANDED_BITS] = now, handed
    state[lane, URGENCY], state[lane, NUMBER] = -key, item
    state[lane, RATE], state[lane, SINCE], state[lane, EVENT_AT] = 0.0, now, np.inf
    _note_next(lane, first, state, pending, pending_key, pending_item)


@compiled
def _note_next(
    lane: int,
    first: int,
    state: FloatArray,
    pending: IntArray,
    pending_key: FloatArray,
    pending_item: IntArray,
) -> None:
    """Writes what waits first in the lane, whose heap begins at `first`."""
    state[lane, NEXT_URGENCY] = -np.inf
    if pending[lane] > 0:
        state[lane, NEXT_URGENCY] = -pending_key[first]
        state[lane, NEXT_NUMBER] = pending_item[first]
