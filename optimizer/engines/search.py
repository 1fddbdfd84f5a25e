"""Simulated annealing of devices and priorities under the problem's own model and sharing.

Two chains walk at once, each on a core of its own; after each round the better state is kept, the
same on every machine. Each round cools once, from the best or from another start. Where rates are
decided (strict, guarantee), they follow the traffic by a rule in even rounds and are held at the
allocator's in odd ones. On large graphs, where a round has a few moves per operator, rounds start
cool, and rates are held from chunk to chunk, so that a move is simulated only where it matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from placewire.optimizer.engines.annealing_chain import Chain, Walker
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.pieces import has_pieces
from placewire.optimizer.engines.scoring import Scored, score
from placewire.optimizer.engines.solution import Progress, Report, Solution
from placewire.optimizer.network.nics import widest_rates
from placewire.optimizer.problem import Problem, SolveSettings

CHAINS = 2
_ROUNDS = 6
_CHUNKS = 12
_MOVES_PER_OPERATOR = 400
_MOVES_RANGE = (2_000, 400_000)
_ROUND_PART = 0.25
# Moves per operator of the sprint before the rounds, if a round has _SPRINT_PART times as many.
_SPRINT_PER_OPERATOR, _SPRINT_PART = 30, 2
_CHUNK_SECONDS = 0.4
# Moves times operators per second, until the speed is measured.
_FIRST_GUESS = 2e6
# A round that gains less than _GAIN is stale; _PATIENCE stale rounds in a row end an open search.
_GAIN = 1e-3
_PATIENCE = 6
# Temperatures as parts of the current step: exploring rounds use these in turn (only the hottest
# leaves the local optima of tight memories), the rounds between them refine.
_EXPLORE, _REFINE, _COLD = (0.6, 0.2), 0.01, 0.0002
# A round with fewer than _MOVES_TO_EXPLORE moves per operator does not explore; with fewer than
# _MOVES_TO_REFINE it starts at _CAREFUL, so that almost only improvements are accepted.
_MOVES_TO_EXPLORE, _MOVES_TO_REFINE, _CAREFUL = 60, 8, 0.001
# How many other cuts a chain tries before each round.
_CUTS_TRIED = 20
# With more operators, rates are held in every round.
_HOLD_ABOVE = 1_000
# With more operators, the rates of a candidate are optimised only where it is the final one.
_QUICK_ABOVE = 20_000


@dataclass
class Search:
    """until: time.monotonic() at which a search without a budget of moves ends. bound_seconds: no
    step is shorter. on_best: called with shorter feasible solutions. `run`, which may be called
    once, sets best and chains."""

    problem: Problem
    settings: SolveSettings
    progress: Report | None
    until: float
    bound_seconds: float
    on_best: Callable[[Solution], None] = lambda solution: None
    moves: int = 0
    best: Scored = field(init=False)
    chains: list[Chain] = field(init=False)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.walker = Walker(self.problem)
        # After a search of whole pieces, hotter rounds would only lose what it found.
        self.is_careful = has_pieces(self.problem)
        self.moves_per_second = _FIRST_GUESS / max(self.problem.graph.operator_count, 1)

    def run(self, starts: Sequence[Found]) -> Scored:
        """The best solution found from at least one start; infeasible only if none was feasible."""
        ranked = sorted(starts, key=lambda found: found.key)
        self.best = score(self.problem, ranked[0].solution, optimise_rates=False)
        self._say()
        self.chains = [self.walker.chain(self.best.solution) for _ in range(CHAINS)]
        stale = 0
        with ThreadPoolExecutor(CHAINS) as pool:
            self._sprint(pool)
            self._try(ranked)
            for k in range(_ROUNDS if self.settings.moves is not None else 1_000_000):
                if self._is_enough() or (self.settings.moves is None and stale >= _PATIENCE):
                    break
                before = self.best.key
                self._round(pool, k, ranked)
                better = self.best.key[0] < before[0] or self.best.key[1] < before[1] * (1 - _GAIN)
                stale = 0 if better else stale + 1
        return self.best

    def _try(self, ranked: Sequence[Found]) -> None:
        """Scores starts with the allocator's rates, so that none is better than the answer: the
        first one, and all that would be better if every pair had its NICs to itself. On large
        graphs, where the allocator takes long, only as many as there is time for."""
        self._keep(self._scored(ranked[0].solution))
        if not self.problem.decides_rates:
            return
        widest = widest_rates(self.problem.usable)
        for found in ranked[1:]:
            if self.problem.graph.operator_count > _HOLD_ABOVE and self._out_of_time():
                return
            if self.walker.costing.cost(found.solution, widest).key < self.best.key:
                self._keep(self._scored(found.solution))

    def _scored(self, solution: Solution) -> Scored:
        quick = self.problem.graph.operator_count > _QUICK_ABOVE
        return score(self.problem, solution, optimise_rates=not quick)

    def _sprint(self, pool: ThreadPoolExecutor) -> None:
        """A short cooling for an early good placement, with rates by the rule. Skipped where a
        round has few more moves, and comes as early."""
        budget = _SPRINT_PER_OPERATOR * self.problem.graph.operator_count
        if budget * _SPRINT_PART > self._moves_per_round():
            return
        for candidate in self._cool(pool, -1, budget, _REFINE, hold=False):
            self._keep(score(self.problem, candidate.solution, optimise_rates=False))

    def _round(self, pool: ThreadPoolExecutor, number: int, ranked: list[Found]) -> None:
        n = self.problem.graph.operator_count
        budget = self._moves_per_round()
        explores = number % 2 == 0 and budget >= _MOVES_TO_EXPLORE * n and not self.is_careful
        is_large = n > _HOLD_ABOVE
        for c, chain in enumerate(self.chains):
            start = self.best.solution
            if explores and number < 4:
                start = ranked[min(number // 2 * CHAINS + c, len(ranked) - 1)].solution
            chain.restart(start)
            seed = self._seed(number, 0, c)
            self.walker.improve_cuts(chain, _CUTS_TRIED, seed, self._out_of_time)
            if is_large and number % 2 == 0:
                chain.rates = None  # by the rule, for the traffic of each chunk
        hot = _EXPLORE[number // 2 % len(_EXPLORE)] if explores else _REFINE
        if budget < _MOVES_TO_REFINE * n or self.is_careful:
            hot = _CAREFUL
        hold = is_large or (self.problem.decides_rates and number % 2 == 1)
        found = self._cool(pool, number, budget, hot, hold=hold)
        for candidate in found[: 1 if n > _QUICK_ABOVE else CHAINS]:
            self._keep(self._scored(candidate.solution))

    def _cool(
        self, pool: ThreadPoolExecutor, number: int, budget: int, hot: float, *, hold: bool
    ) -> list[Found]:
        """The best state of each chain, best first. The time is checked after every chunk."""
        scale = min(self.best.step_seconds, self.walker.costing.reference)
        best: list[Found | None] = [None] * CHAINS
        done, chunk = 0, 0
        while done < budget and not (chunk and self._out_of_time()):
            size = min(budget - done, self._chunk(budget))
            ends = [scale * hot * (_COLD / hot) ** (at / budget) for at in (done, done + size)]

            def walk(c: int, size: int = size, ends: list[float] = ends, at: int = chunk) -> Found:
                chain, seed = self.chains[c], self._seed(number, at, c)
                found = self.walker.walk(chain, size, ends[0], ends[1], seed, hold=hold)
                chain.adapt()
                return found

            before = time.monotonic()
            for c, found in enumerate(pool.map(walk, range(CHAINS))):
                held = best[c]
                if held is None or found.key < held.key:
                    best[c] = found
            took = time.monotonic() - before
            done, chunk = done + size, chunk + 1
            self.moves += size * CHAINS
            self.moves_per_second = size / max(took, 1e-6)
            self._say()
        return sorted((f for f in best if f is not None), key=lambda found: found.key)

    def _seed(self, number: int, chunk: int, chain: int) -> int:
        seed = ((self.settings.seed * 1_000_003 + number) * 1_009 + chunk) * CHAINS + chain
        return seed % 2**31

    def _keep(self, candidate: Scored) -> None:
        if candidate.key < self.best.key:
            self.best = candidate
            if candidate.excess == 0.0:
                self.on_best(candidate.solution)
        self._say()

    def _moves_per_round(self) -> int:
        """Moves of each chain, by the graph's size; in a timed search within a part of the time."""
        if self.settings.moves is not None:
            return max(1, self.settings.moves // (_ROUNDS * CHAINS))
        wanted = np.clip(_MOVES_PER_OPERATOR * self.problem.graph.operator_count, *_MOVES_RANGE)
        part = _ROUND_PART * self.settings.time_limit_seconds
        left = max(min(part, self.until - time.monotonic()), 0.0)
        return int(max(min(wanted, left * self.moves_per_second), _CHUNKS))

    def _chunk(self, budget: int) -> int:
        share = -(-budget // _CHUNKS)
        if self.settings.moves is not None:
            return share
        left = max(self.until - time.monotonic(), 0.0)
        return max(1, min(share, int(min(_CHUNK_SECONDS, left) * self.moves_per_second)))

    def _is_enough(self) -> bool:
        if self.best.excess == 0.0:
            gap = 1.0 - self.bound_seconds / max(self.best.step_seconds, 1e-300)
            if gap <= max(self.settings.gap, 1e-9):
                return True
        return self._out_of_time()

    def _out_of_time(self) -> bool:
        return self.settings.moves is None and time.monotonic() > self.until

    def _say(self) -> None:
        if self.progress is None:
            return
        incumbent = self.best.step_seconds if self.best.excess == 0.0 else float("inf")
        elapsed = time.monotonic() - self.began
        self.progress(Progress(elapsed, incumbent, self.bound_seconds, self.moves))
