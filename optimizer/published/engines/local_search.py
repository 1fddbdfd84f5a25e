"""Engine `local-search`: the best reassignment of one operator, until none is better.

Michiels, Aarts, Korst: "Theoretical Aspects of Local Search" (Springer 2007), as the thesis (2.2)
and QuickP (II) describe it for placements: from a random one, the reassignment of one operator to
another device that shortens the step most is made, again and again, until there is none. A
co-location group moves as one. Where the time ends within a round, the best of it so far is made.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """settings.moves limits the reassignments that are made. Raises InfeasibleError where a group
    can run on no device."""
    search = Reassignment(problem, by_remaining_path)
    start = search.random(np.random.default_rng(settings.seed))
    best = improve(search, start, settings.moves, deadline("local-search", settings))
    return Solution(best.device, best.priority, None)


def improve(search: Reassignment, start: IntArray, most: int | None, until: Deadline) -> Found:
    """A local optimum, unless `most` moves or the time end before."""
    best, made = search.cost(start), 0
    while (most is None or made < most) and not until.is_over:
        found = best_move(search, best, until)
        if found is None:
            break
        best, made = found, made + 1
    return best


def best_move(search: Reassignment, now: Found, until: Deadline) -> Found | None:
    """None where no reassignment of one unit costs less."""
    best = now
    for unit in search.movable.tolist():
        here = now.device[search.members[unit][0]]
        for d in search.able[unit].tolist():
            if until.is_over:
                return best if best is not now else None
            if d != here:
                tried = search.cost(search.moved(now.device, unit, d))
                best = tried if tried.cost < best.cost else best
    return best if best is not now else None


ENGINE = Engine(
    "the best reassignment of one operator, repeated",
    solve,
    paper="Michiels et al. (2007)",
    section="thesis 2.2",
    decides="devices",
    sees="the problem's own model",
    memory="the simulated peak, charged",
    unlike="yes",
    reduction="none",
)
