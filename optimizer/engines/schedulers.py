"""Schedulers: what gives the order of any engine's placement, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.problem import Problem
from placewire.optimizer.registry import Registry

# The order as the engine decided it.
OWN = "own"


@dataclass(frozen=True)
class Scheduler:
    """priority: float64[n] from a problem and the device int64[n] of each operator; the largest
    runs first."""

    summary: str
    priority: Callable[[Problem, IntArray], FloatArray]
    paper: str = ""
    section: str = ""


SCHEDULERS = Registry("placewire.schedulers", "scheduler", Scheduler)


def schedule(problem: Problem, solution: Solution, name: str) -> Solution:
    """The same devices and rates in another order. Raises UnknownMethodError."""
    if name == OWN:
        return solution
    scheduler = SCHEDULERS.load(name)
    return replace(solution, priority=scheduler.priority(problem, solution.device))
