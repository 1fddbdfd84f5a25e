"""Engine `local-search`: makes the best reassignment of one operator, until none helps.

Michiels, Aarts, Korst: "Theoretical Aspects of Local Search" (Springer 2007), as the thesis (2.2)
and QuickP (II) describe it for placements: from a random placement on, the reassignment of one
operator to another device that shortens the step most is made, again and again, until none shortens
it. A co-location group moves as one. Where the time ends within a round, the best reassignment
found so far in this round is made.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.kinds import search_engine
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Makes at most settings.moves reassignments. Raises InfeasibleError where a group can run on
    no device."""
    search = Reassignment(problem, by_remaining_path)
    start = search.random(np.random.default_rng(settings.seed))
    best = improve(search, start, settings.moves, deadline("local-search", settings))
    return Solution(best.device, best.priority, None)


def improve(search: Reassignment, start: IntArray, most: int | None, until: Deadline) -> Found:
    """A local optimum, unless `most` moves are made or the time ends before."""
    best, made = search.cost(start), 0
    while (most is None or made < most) and not until.is_over:
        before, made = best, made + 1
        best = best_move(search, before, until)
        if best is before:
            break
    return best


def best_move(search: Reassignment, now: Found, until: Deadline) -> Found:
    """`now` itself where no reassignment of one unit costs less."""
    best = now
    for unit in search.movable.tolist():
        here = now.device[search.members[unit][0]]
        for d in search.able[unit].tolist():
            if until.is_over:
                return best
            if d != here:
                tried = search.cost(search.moved(now.device, unit, d))
                best = tried if tried.cost < best.cost else best
    return best


ENGINE = search_engine(
    "the best reassignment of one operator, repeated", solve, paper="Michiels et al. (2007)",
    section="thesis 2.2",
)  # fmt: skip
