"""Scores a solution: its step under good rates, and how far it exceeds a memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.engines.costing import Costing
from placewire.optimizer.engines.layered_bundles import searched_bundles
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import allocate, starting_rates
from placewire.optimizer.simulation.simulate import simulate


@dataclass(frozen=True)
class Scored:
    """step_seconds: simulated with the solution's own rates. excess: by what part of its memory the
    worst device's peak exceeds it (0: feasible). Where a search counts bundles, the step is longer
    by a charge for what exceeds a memory, and the excess is that of all devices."""

    solution: Solution
    step_seconds: float
    excess: float

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better: feasible before fast."""
        return (self.excess, self.step_seconds)


def score(
    problem: Problem, solution: Solution, *, optimise_rates: bool = True, until: float = math.inf
) -> Scored:
    """Scores the solution. Where rates are decided, it gets the allocator's, as far as they are
    found before time.monotonic() is `until`; without optimise_rates it keeps its own. Rates by
    volume replace missing rates, and rates with which a message never arrives."""
    if problem.decides_rates:
        solution = _with_rates(problem, solution, optimise_rates, until)
    if searched_bundles(problem) is not None:
        found = Costing(problem).cost(solution)
        return Scored(solution, found.cost, found.excess)
    timeline = simulate(problem, solution.device, solution.priority, None, solution.rates)
    memory = problem.cluster.memory_bytes
    over = (timeline.peak_memory_bytes - memory) / np.maximum(memory, 1)
    return Scored(solution, timeline.step_seconds, max(0.0, float(over.max(initial=0.0))))


def _with_rates(problem: Problem, solution: Solution, optimise: bool, until: float) -> Solution:
    device, priority = solution.device, solution.priority
    rates = solution.rates if solution.rates is not None else starting_rates(problem, device)
    first = simulate(problem, device, priority, None, rates)
    if not np.isfinite(first.step_seconds):
        rates = starting_rates(problem, device)
        first = simulate(problem, device, priority, None, rates)
    if optimise:
        best = allocate(problem, device, first.order, rates, until)
        again = simulate(problem, device, priority, None, best)
        # Other rates may change the order to which the priorities lead.
        rates = best if again.step_seconds <= first.step_seconds else rates
    return replace(solution, rates=rates)
