"""Placements with which every program begins, so that it never has less than one device or HEFT."""

from __future__ import annotations

import contextlib

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines import heft
from placewire.optimizer.engines.device_capacity import DeviceCapacities
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.units import unit_sums
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.published.formulations.instance import Instance


def starting_devices(problem: Problem) -> list[IntArray]:
    """Device arrays int64[n]: the best single device, and HEFT's. Where (3.2) admits neither, as
    where the static sum of all operators exceeds a device whose simulated peak does not, HEFT's
    with that sum as its memory comes last. What (3.2) still does not admit, the solver finds to be
    infeasible."""
    instance = Instance(problem)
    found: list[IntArray] = []
    if (alone := best_single(problem)) is not None:
        found.append(alone[0].device)
    with contextlib.suppress(InfeasibleError):
        found.append(heft.quick(problem).device)
    if not any(instance.admits(device) for device in found):
        within = heft.inserted(problem, _StaticMemory(instance), heft.by_rank(problem))
        found += [] if within is None else [within.device]
    return found


class _StaticMemory(DeviceCapacities):
    """Counts memory as (3.2) does: with workspaces, as if all were held at once."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance.problem)
        self.needed = unit_sums(np.array(self.unit), instance.memory_bytes).tolist()
