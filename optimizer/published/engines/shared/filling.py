"""Fills one device after the other, in a given order of the operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.device_capacity import DeviceCapacities, within_memory
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.problem import Problem


def fill_in_order(
    problem: Problem,
    engine: str,
    order: IntArray,
    most_bytes: Callable[[DeviceCapacities], list[float]],
) -> Solution:
    """Operators are placed, and run, in order int64[n]; each device is filled up to most_bytes.
    Raises InfeasibleError where a group can run on no device."""
    priority = np.empty(len(order))
    priority[order] = -np.arange(len(order))

    def attempt(capacities: DeviceCapacities) -> Solution:
        return Solution(_fill(capacities, order, most_bytes(capacities)), priority, None)

    return within_memory(problem, engine, attempt)


def _fill(capacities: DeviceCapacities, order: IntArray, most_bytes: list[float]) -> IntArray:
    """int64[n]: the device of each operator; each device holds most_bytes or its memory at most.

    A full device is not filled again later, except with what the current device cannot run. Where
    no device is left, an operator goes to the device with the most memory left (Celeritas' best
    effort, section 6.3).
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
