"""Engine `flexflow`: FlexFlow's Markov chain Monte Carlo over placements.

Jia, Zaharia, Aiken: "Beyond data and model parallelism for deep neural networks" (MLSys 2019),
section 6: Metropolis-Hastings from a random strategy. A step moves a random operator to a random
device; the new placement S* replaces S with probability min(1, exp(beta (cost(S) - cost(S*)))), and
the best placement that was seen is the answer. The search ends with its budget, or when the best
has not improved for half of the search. Placements are evaluated in the order of FlexFlow's
simulator, first in, first out (schedulers/fifo.py). FlexFlow's strategies that split operators are
left out.

Chosen where the paper leaves it open: 1 / beta is a hundredth of the best step so far; the search
is as long as the thesis' (25,000 steps, or settings.moves).
"""

from __future__ import annotations

import math

import numpy as np

from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.mcmc import STEPS
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.kinds import search_engine
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.schedulers.fifo import by_arrival

_TEMPERATURE = 0.01


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group can run on no device."""
    search = Reassignment(problem, by_arrival)
    steps = STEPS if settings.moves is None else settings.moves
    until = deadline("flexflow", settings)
    best = walk(search, np.random.default_rng(settings.seed), steps, until)
    return Solution(best.device, best.priority, None)


def walk(
    search: Reassignment, generator: np.random.Generator, steps: int, until: Deadline
) -> Found:
    """The best placement of a chain that starts from a random one."""
    now = best = search.cost(search.random(generator))
    improved = 0
    for k in range(steps if len(search.movable) else 0):
        if until.is_over or k - improved > max(steps // 2, 1):
            break
        tried = search.cost(search.proposal(now.device, generator))
        if accepts(now.cost, tried.cost, _TEMPERATURE * best.cost, generator):
            now = tried
        if tried.key < best.key:
            best, improved = tried, k
    return best


def accepts(now: float, tried: float, temperature: float, generator: np.random.Generator) -> bool:
    """Metropolis' rule: a cost that is no larger is always accepted, a larger one with probability
    exp((now - tried) / temperature)."""
    if tried <= now:
        return True
    if temperature <= 0.0 or tried == math.inf:
        return False
    return float(generator.random()) < math.exp((now - tried) / temperature)


ENGINE = search_engine(
    "Metropolis-Hastings, from a random placement", solve,
    paper="Jia et al., FlexFlow (MLSys 2019)", section="6",
)  # fmt: skip
