"""Schedulers by name: the order of any engine's placement."""

from __future__ import annotations

from dataclasses import replace

from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.names import SchedulerName
from placewire.optimizer.problem import Problem


def schedule(problem: Problem, solution: Solution, name: SchedulerName) -> Solution:
    """The same devices and rates in another order; names.py says which there are."""
    if name == "list":
        from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path

        return replace(solution, priority=by_remaining_path(problem, solution.device))
    if name == "fifo":
        from placewire.optimizer.published.schedulers.fifo import by_arrival

        return replace(solution, priority=by_arrival(problem, solution.device))
    return solution
