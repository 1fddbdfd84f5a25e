"""One device filled after the other, in a given order of the operators."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.device_capacity import DeviceCapacities


def fill(capacities: DeviceCapacities, order: IntArray, most_bytes: list[float]) -> IntArray:
    """int64[n]: operators in order int64[n], each device up to most_bytes or its memory.

    A device that is left is not returned to, except for what the present one cannot run. Where no
    device is left, the roomiest takes what comes (Celeritas' best effort, section 6.3). Raises
    InfeasibleError where a group can run on no device.
    """
    left = [min(most, room) for most, room in zip(most_bytes, capacities.left_bytes, strict=True)]
    current = 0
    for i in order.tolist():
        needed, d = capacities.needed[capacities.unit[i]], capacities.home(i)
        if d < 0:
            while current < len(left) and capacities.can_run(i, current) and needed > left[current]:
                current += 1
            later = range(current, len(left))
            d = next((k for k in later if capacities.can_run(i, k) and needed <= left[k]), -1)
            d = capacities.roomiest(i) if d < 0 else d
            left[d] -= needed
        capacities.put(i, d)
    return np.array(capacities.device, dtype=np.int64)
