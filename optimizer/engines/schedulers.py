"""Schedulers, which order the operators of any engine's placement, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewire.optimizer.registry import Registry

if TYPE_CHECKING:
    from placewire.optimizer.arrays import FloatArray, IntArray
    from placewire.optimizer.engines.solution import Solution
    from placewire.optimizer.problem import Problem

# The name that keeps the engine's own order.
OWN = "own"


@dataclass(frozen=True)
class Scheduler:
    """priority: float64[n] from a problem and each operator's device int64[n]; on a device the
    largest runs first."""

    summary: str
    priority: Callable[[Problem, IntArray], FloatArray]
    paper: str = ""
    section: str = ""


SCHEDULERS = Registry("placewire.schedulers", "scheduler", Scheduler)


def schedule(problem: Problem, solution: Solution, name: str) -> Solution:
    """The solution with the order of the named scheduler. Raises UnknownMethodError."""
    if name == OWN:
        return solution
    scheduler = SCHEDULERS.load(name)
    priority = scheduler.priority(problem, solution.device)
    return replace(solution, priority=priority, layout=None)
