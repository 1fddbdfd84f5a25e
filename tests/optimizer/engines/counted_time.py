"""A clock that only the search's own work moves on, so that a test of time limits cannot flake.

Each simulation takes a set time, as does each bound, each linear program, and what is written down
and checked at the end. They run as they are; how long they really take counts nothing. Chains walk
one after the other, each for its part of the time, so that the count is always the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from placewire.optimizer.bounds import Bound, quick
from placewire.optimizer.engines import best_variant as variants
from placewire.optimizer.engines import costing, piece_search, place, search
from placewire.optimizer.engines.annealing_chain import Chain, Walker
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.rate_program import _Program
from placewire.optimizer.simulation import simulate


@dataclass(frozen=True)
class Costs:
    """Seconds: of one simulation, of one move of the search, of a bound, of one linear program, and
    of the answer's check."""

    simulation: float
    move: float
    bound: float
    program: float
    check: float


@dataclass
class CountedTime:
    """begun: what was done, and the clock when it began."""

    costs: Costs
    now: float = 0.0
    begun: list[tuple[str, float]] = field(default_factory=list)

    def passes(self, what: str, seconds: float) -> None:
        self.begun.append((what, self.now))
        self.now += seconds

    def set(self, patch: pytest.MonkeyPatch) -> None:
        costs, walk = self.costs, Walker.walk

        def counted(what: str, seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
            def counts(*arguments: Any, **named: Any) -> Any:
                self.passes(what, seconds)
                return call(*arguments, **named)

            return counts

        def walked(walker: Walker, chain: Chain, moves: int, *rest: Any, **named: Any) -> Found:
            self.passes("moves", moves * costs.move)
            return walk(walker, chain, moves, *rest, **named)

        def proves_nothing(problem: Problem, step: float, seconds: float, **hears: Any) -> Bound:
            """It takes all of the time that it is given, as a proof that finds nothing does."""
            self.passes("stronger bound", seconds)
            return quick.lower_bound(problem)

        patch.setattr(time, "monotonic", lambda: self.now)
        for module, threads in (
            (piece_search, "CHAINS"),
            (search, "CHAINS"),
            (variants, "_THREADS"),
        ):
            patch.setattr(module, threads, 1)
        patch.setattr(Walker, "walk", walked)
        patch.setattr(place, "strong_bound", proves_nothing)
        for owner, name, what, seconds in (
            (simulate, "_check_devices", "simulation", costs.simulation),
            (costing, "bundled_cost", "simulation", costs.simulation),
            (quick, "_lower_bound", "bound", costs.bound),
            (_Program, "_linear_program", "linear program", costs.program),
            (place, "check", "check", costs.check),
        ):  # fmt: skip
            patch.setattr(owner, name, counted(what, seconds, getattr(owner, name)))
