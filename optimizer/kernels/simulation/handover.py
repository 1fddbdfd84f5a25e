"""The two ends of a transfer: which part a lane sends next, and what an arrival makes ready."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.heap import push
from placewire.optimizer.kernels.simulation.rate_filling import (
    EVENT_AT,
    NUMBER,
    RATE,
    REMAINING_BITS,
    SINCE,
    URGENCY,
)


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
    pending_key: FloatArray,
    pending_item: IntArray,
    message_of: IntArray,
    part_bits: FloatArray,
) -> None:
    """Makes the most urgent pending part the one that the lane sends; part_bits keeps what is left
    of a part that it overtakes."""
    rails = part_bits.shape[1]
    if head[lane] >= 0:
        left = state[lane, REMAINING_BITS] - state[lane, RATE] * (now - state[lane, SINCE])
        part_bits[head[lane] // rails, rail] = max(left, 0.0)
    item = pending_item[base[lane]]
    head[lane] = message_of[item] * rails + rail
    state[lane, REMAINING_BITS] = part_bits[message_of[item], rail]
    state[lane, URGENCY], state[lane, NUMBER] = -pending_key[base[lane]], item
    state[lane, RATE], state[lane, SINCE], state[lane, EVENT_AT] = 0.0, now, np.inf
