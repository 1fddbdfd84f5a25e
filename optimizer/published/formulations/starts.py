"""Placements with which every program begins, so that it never has less than one device or HEFT."""

from __future__ import annotations

import contextlib

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines import heft
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.problem import InfeasibleError, Problem


def starting_devices(problem: Problem) -> list[IntArray]:
    """Device arrays int64[n]: the best single device, and HEFT's; those that the papers' static
    memory does not admit are found to be infeasible by the solver."""
    found: list[IntArray] = []
    if (alone := best_single(problem)) is not None:
        found.append(alone[0].device)
    with contextlib.suppress(InfeasibleError):
        found.append(heft.quick(problem).device)
    return found
