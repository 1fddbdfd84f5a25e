"""Simulated annealing of devices and priorities under the problem's own model and sharing.

The inner loop is compiled (kernels/anneal.py); here are its rounds. Each round cools once, from the
best or from another start; where rates are decided (strict, guarantee) they follow the traffic by
a rule in odd rounds and are held at the allocator's in even ones. Every sharing is searched under
its own simulation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optimizer.bounds import lower_bound
from optimizer.engines.neighbourhood import make_neighbourhood
from optimizer.engines.solution import Progress, Report, Solution
from optimizer.graph import FloatArray
from optimizer.problem import Problem, SolveSettings
from optimizer.rates import allocate, starting_rates
from optimizer.sharing import decides_rates, rates_in_force
from optimizer.simulate import simulate

if TYPE_CHECKING:
    from optimizer.kernels.anneal import Scoring

_ROUNDS = 6
_CHUNKS = 12
_MOVES_PER_OPERATOR = 400
_MOVES_RANGE = (4_000, 400_000)
# A round that gains less than this has found nothing; so many in a row end an open-ended search.
_GAIN = 1e-3
_PATIENCE = 4
# Temperatures over the current step: exploring rounds take turns (only the hottest leaves the
# valleys that tight memories make), the rounds between them refine.
_EXPLORE, _REFINE, _COLD = (0.6, 0.2), 0.01, 0.0002


@dataclass(frozen=True)
class Scored:
    """step_seconds is simulated with the solution's own rates; excess is the worst device's peak
    over its memory, as a fraction (0: feasible)."""

    solution: Solution
    step_seconds: float
    excess: float

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better: feasible before fast."""
        return (self.excess, self.step_seconds)


def score(problem: Problem, solution: Solution, *, optimise_rates: bool = True) -> Scored:
    """Where rates are decided, with the allocator's, or as quickly with the solution's own, and
    with rates by volume where it has none that serve."""
    if decides_rates(problem):
        solution = _with_rates(problem, solution, optimise_rates)
    timeline = simulate(problem, solution.device, solution.priority, None, solution.rates)
    memory = problem.cluster.memory_bytes
    over = (timeline.peak_memory_bytes - memory) / np.maximum(memory, 1)
    return Scored(solution, timeline.step_seconds, max(0.0, float(over.max(initial=0.0))))


def _with_rates(problem: Problem, solution: Solution, optimise: bool) -> Solution:
    device, priority = solution.device, solution.priority
    rates = solution.rates if solution.rates is not None else starting_rates(problem, device)
    first = simulate(problem, device, priority, None, rates)
    if not np.isfinite(first.step_seconds):
        rates = starting_rates(problem, device)
        first = simulate(problem, device, priority, None, rates)
    if optimise:
        best = allocate(problem, device, first.order, rates)
        again = simulate(problem, device, priority, None, best)
        # Other rates may change the order that the priorities lead to.
        rates = best if again.step_seconds <= first.step_seconds else rates
    return replace(solution, rates=rates)


class Annealing:
    """One search; `run` may be called once."""

    def __init__(self, problem: Problem, settings: SolveSettings, progress: Report | None) -> None:
        from optimizer.kernels.tables import make_tables

        self.problem, self.settings, self.progress = problem, settings, progress
        self.tables = make_tables(problem)
        self.neighbourhood = make_neighbourhood(problem)
        self.bound = lower_bound(problem).seconds
        finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
        self.reference = max(float(finite.max(axis=1).sum()), 1e-9)
        self.check_memory = self._memory_may_bind()
        self.began = time.monotonic()
        self.moves = 0
        self.best: Scored | None = None

    def _memory_may_bind(self) -> bool:
        graph = self.problem.graph
        readers = np.diff(graph.consumers_start)
        most = graph.weight_bytes.sum() + graph.activation_bytes.sum()
        most += graph.workspace_bytes.sum() + (graph.tensor_bytes * (readers > 0)).sum()
        return bool(most > self.problem.cluster.memory_bytes.min())

    def run(self, starts: Sequence[Solution]) -> Scored:
        """The best found from at least one start; infeasible only where nothing feasible was."""
        quick = (score(self.problem, s, optimise_rates=False) for s in starts)
        scored = sorted(quick, key=lambda s: s.key)
        self.best = score(self.problem, scored[0].solution)
        self._say()
        per_round = self._moves_per_round(self.best.solution)
        stale = 0
        for k in range(_ROUNDS if self.settings.moves is not None else 1_000_000):
            if self._is_enough() or (self.settings.moves is None and stale >= _PATIENCE):
                break
            before = self.best.key
            fixed_rates = decides_rates(self.problem) and k % 2 == 1
            start = scored[min(k // 2, len(scored) - 1)] if k < 4 and k % 2 == 0 else self.best
            hot = _EXPLORE[k // 2 % len(_EXPLORE)] if k % 2 == 0 else _REFINE
            found = self._round(start.solution, per_round, k, fixed_rates, hot)
            self._keep(score(self.problem, found))
            better = self.best.key[0] < before[0] or self.best.key[1] < before[1] * (1 - _GAIN)
            stale = 0 if better else stale + 1
        return self.best

    def _keep(self, candidate: Scored) -> None:
        assert self.best is not None
        if candidate.key < self.best.key:
            self.best = candidate
        self._say()

    def _moves_per_round(self, start: Solution) -> int:
        """By size; in a timed search no more than a quarter of the time allows."""
        if self.settings.moves is not None:
            return max(1, self.settings.moves // _ROUNDS)
        wanted = _MOVES_PER_OPERATOR * self.problem.graph.operator_count
        possible = 0.25 * self.settings.time_limit_seconds / self._move_seconds(start)
        return int(np.clip(min(np.clip(wanted, *_MOVES_RANGE), possible), _CHUNKS, None))

    def _move_seconds(self, start: Solution) -> float:
        from optimizer.kernels.anneal import cost

        scoring = self._scoring(self._round_rates(start, False), fixed_rates=False)
        priority = start.priority.astype(np.float64)
        cost(self.tables, scoring, start.device, priority)  # compiles, or loads what was compiled
        before = time.monotonic()
        cost(self.tables, scoring, start.device, priority)
        return max(time.monotonic() - before, 1e-6)

    def _scoring(self, rates: FloatArray, *, fixed_rates: bool) -> Scoring:
        from optimizer.kernels.anneal import Scoring

        return Scoring(
            proportional=decides_rates(self.problem) and not fixed_rates,
            check_memory=self.check_memory,
            reference_seconds=self.reference,
            rates=rates,
        )

    def _is_enough(self) -> bool:
        assert self.best is not None
        if self.best.excess == 0.0:
            gap = 1.0 - self.bound / max(self.best.step_seconds, 1e-300)
            if gap <= max(self.settings.gap, 1e-9) and self.settings.gap > 0:
                return True
            if gap <= 1e-9:
                return True
        return self.settings.moves is None and self._out_of_time()

    def _out_of_time(self) -> bool:
        return time.monotonic() - self.began > self.settings.time_limit_seconds

    def _say(self) -> None:
        if self.progress is not None and self.best is not None:
            incumbent = self.best.step_seconds if self.best.excess == 0.0 else float("inf")
            elapsed = time.monotonic() - self.began
            self.progress(Progress(elapsed, incumbent, self.bound, self.moves))

    def _round(
        self, start: Solution, moves: int, number: int, fixed_rates: bool, hot: float
    ) -> Solution:
        """One cooling, in chunks so that time is looked at; the best state of it."""
        from optimizer.kernels.anneal import anneal, cost

        rates = self._round_rates(start, fixed_rates)
        scoring = self._scoring(rates, fixed_rates=fixed_rates)
        device, priority = start.device.copy(), start.priority.astype(np.float64)
        best_device, best_priority = device.copy(), priority.copy()
        current, excess = cost(self.tables, scoring, device, priority)
        best = current
        scale = min(current, self.reference) if np.isfinite(current) else self.reference
        temperatures = scale * hot * (_COLD / hot) ** (np.arange(_CHUNKS + 1) / _CHUNKS)
        for c in range(_CHUNKS):
            size = moves // _CHUNKS + (1 if c < moves % _CHUNKS else 0)
            seed = (self.settings.seed * 1_000_003 + number * 1_009 + c) % 2**31
            current, best, excess = anneal(
                self.tables, scoring, self.neighbourhood, device, priority,
                best_device, best_priority, current, best, excess, size,
                float(temperatures[c]), float(temperatures[c + 1]), seed,
            )  # fmt: skip
            self.moves += size
            self._say()
            if self.settings.moves is None and self._out_of_time():
                break
        kept = start.rates if fixed_rates else None
        return Solution(best_device, best_priority, kept)

    def _round_rates(self, start: Solution, fixed_rates: bool) -> FloatArray:
        if not decides_rates(self.problem):
            return np.ascontiguousarray(rates_in_force(self.problem, None))
        servers, rails = self.tables.nic_rates.shape
        if fixed_rates and start.rates is not None and start.rates.shape[2] == rails:
            return np.ascontiguousarray(start.rates)
        return np.zeros((servers, servers, rails))
