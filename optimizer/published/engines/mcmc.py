"""Engine `mcmc`: Markov chain Monte Carlo from one device, as the thesis runs it.

Thesis, section 5.3 (after FlexFlow): all operators begin on one device, so that the answer is never
worse than that; 25,000 times a random operator moves to a random device, and stays there if the
step becomes shorter. Placements are evaluated by list scheduling (section 5.2). The thesis names no
start for the case that no device can hold everything; here it is the device that lacks the least
memory. A co-location group moves as one. FlexFlow's own rule, which also accepts some longer steps,
is in `flexflow`.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.kinds import search_engine
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path

STEPS = 25_000


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Makes settings.moves steps (25,000 where None) within the time limit. Raises InfeasibleError
    where a group can run on no device."""
    search = Reassignment(problem, by_remaining_path)
    steps = STEPS if settings.moves is None else settings.moves
    best = descend(search, one_device(search), steps, settings.seed, deadline("mcmc", settings))
    return Solution(best.device, best.priority, None)


def one_device(search: Reassignment) -> IntArray:
    """int64[n]: all on the best device that can hold everything. Without any: all on the device
    that lacks least, but what cannot run there on the first device that can run it."""
    problem = search.problem
    alone = best_single(problem)
    if alone is not None:
        return alone[0].device
    found = []
    for d in range(len(problem.cluster.devices)):
        device = np.full(problem.graph.operator_count, d, dtype=np.int64)
        for members, able in zip(search.members, search.able, strict=True):
            if d not in able:
                device[members] = able[0]
        found.append(search.cost(device))
    return min(found, key=lambda one: one.key).device


def descend(search: Reassignment, start: IntArray, steps: int, seed: int, until: Deadline) -> Found:
    """The last placement of the chain, in which every placement is better than the one before."""
    generator = np.random.default_rng(seed)
    best = search.cost(start)
    for _ in range(steps if len(search.movable) and len(start) else 0):
        if until.is_over:
            break
        tried = search.cost(search.proposal(best.device, generator))
        if tried.cost < best.cost:
            best = tried
    return best


ENGINE = search_engine(
    "25,000 random reassignments, from one device", solve,
    paper="Joint Optimization of Algebraic Transformation, Device Placement … (thesis)",
    section="5.3",
)  # fmt: skip
