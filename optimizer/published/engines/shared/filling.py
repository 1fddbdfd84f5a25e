"""One device filled after the other, in a given order of the operators."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.device_capacity import Rooms


def fill(rooms: Rooms, order: IntArray, most_bytes: list[float]) -> IntArray:
    """int64[n]: operators in order int64[n], each device up to most_bytes or its memory.

    A device that is left is not returned to, except for what the present one cannot run. Where no
    device is left, the roomiest takes what comes (Celeritas' best effort, section 6.3). Raises
    InfeasibleError where a group can run on no device.
    """
    left = [min(most, room) for most, room in zip(most_bytes, rooms.room, strict=True)]
    current = 0
    for i in order.tolist():
        needed, d = rooms.needed[rooms.unit[i]], rooms.home(i)
        if d < 0:
            while current < len(left) and rooms.can_run(i, current) and needed > left[current]:
                current += 1
            later = range(current, len(left))
            d = next((k for k in later if rooms.can_run(i, k) and needed <= left[k]), -1)
            d = rooms.roomiest(i) if d < 0 else d
            left[d] -= needed
        rooms.put(i, d)
    return np.array(rooms.device, dtype=np.int64)
