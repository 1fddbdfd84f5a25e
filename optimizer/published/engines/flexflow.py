"""Engine `flexflow`: FlexFlow's Markov chain Monte Carlo over placements.

Jia, Zaharia, Aiken: "Beyond data and model parallelism for deep neural networks" (MLSys 2019),
section 6: Metropolis-Hastings from a random strategy. A random operator goes to a random device; a
placement S* takes the place of S with the probability min(1, exp(beta (cost(S) - cost(S*)))), and
the best that was seen is the answer. It ends with the budget, or once the best has not become
better for half of the search. Placements are evaluated by FlexFlow's simulator, first in, first out
(fifo.py). Of FlexFlow's strategies, these are the ones without split operators.

Chosen where the paper leaves it open: 1 / beta is a hundredth of the best step so far; the search
is as long as the thesis' (25,000 steps, or settings.moves).
"""

from __future__ import annotations

import math

import numpy as np

from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.mcmc import STEPS
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.schedulers.fifo import by_arrival

_TEMPERATURE = 0.01


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group can run on no device."""
    search = Reassignment(problem, by_arrival)
    generator = np.random.default_rng(settings.seed)
    steps = STEPS if settings.moves is None else settings.moves
    best = walk(search, generator, steps, deadline("flexflow", settings))
    return Solution(best.device, best.priority, None)


def walk(
    search: Reassignment, generator: np.random.Generator, steps: int, until: Deadline
) -> Found:
    """The best of a chain from a random placement."""
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
    """Metropolis: always what costs no more, else with exp((now - tried) / temperature)."""
    if tried <= now:
        return True
    if temperature <= 0.0 or tried == math.inf:
        return False
    return float(generator.random()) < math.exp((now - tried) / temperature)


ENGINE = Engine(
    "Metropolis-Hastings, from a random placement",
    solve,
    paper="Jia et al., FlexFlow (MLSys 2019)",
    section="6",
    decides="devices",
    sees="the problem's own model",
    memory="the simulated peak, charged",
    unlike="yes",
    reduction="none",
)
