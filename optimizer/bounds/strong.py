"""The bound that is worth its time: CP-SAT on the contention-free relaxation."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from placewire.optimizer.bounds.bound import ROUNDING, Bound
from placewire.optimizer.bounds.contradiction import Limits, limits_of, tightened
from placewire.optimizer.bounds.exact_model import ExactModel, Machines
from placewire.optimizer.bounds.exact_rates import (
    add_rates,
    add_volumes,
    sent_tensors,
    servers_are_alike,
    servers_are_devices,
)
from placewire.optimizer.bounds.load import share_of_load
from placewire.optimizer.bounds.partial_graph import Part, cut_out, machines_for, parts_of
from placewire.optimizer.bounds.quick import lower_bound
from placewire.optimizer.bounds.relaxation import Relaxation, relax
from placewire.optimizer.problem import Problem

_ROUNDS = 30
# Operators that take time, at most: of a graph that is modelled whole, and of a part of one.
_WHOLE, _PART = 600, 150
# Times are whole ticks, so many in the step to refute.
_COARSE_TICKS, _FINE_TICKS = 8_000, 400_000
# A proof needs a moment for the model itself.
_LEAST_SECONDS = 0.2
# Of what is left between bound and step, where the next step to refute is; and of the time left.
_TRIAL_AT, _TRIAL_TIME = 0.5, 0.35
_PLAIN_TIME = 0.25
_CLOSE = 1e-4

OnBound = Callable[[Bound], None]


def strong_bound(
    problem: Problem,
    incumbent_seconds: float,
    time_limit_seconds: float,
    workers: int = 2,
    on_bound: OnBound | None = None,
) -> Bound:
    """The best lower bound proven in the time; never below `lower_bound`, nor above the step of
    incumbent_seconds (inf: none is known), that some placement reaches. on_bound hears of each
    better one.

    Raises InfeasibleError where an operator can run on no device of the cluster.
    """
    search = _Search(problem, incumbent_seconds, time_limit_seconds, workers, on_bound)
    search.run()
    return search.best


class _Search:
    def __init__(
        self,
        problem: Problem,
        incumbent_seconds: float,
        time_limit_seconds: float,
        workers: int,
        on_bound: OnBound | None,
    ) -> None:
        self.until = time.monotonic() + time_limit_seconds
        self.problem, self.workers, self.on_bound = problem, workers, on_bound
        self.best = lower_bound(problem)
        self.step = incumbent_seconds
        if on_bound is not None:
            on_bound(self.best)

    def run(self) -> None:
        problem = self.problem
        if len(problem.cluster.devices) < 2 or self.step <= self.best.seconds * (1 + _CLOSE):
            return
        relaxation = relax(problem)
        limits = limits_of(problem, share_of_load(problem.seconds))
        step = self.step if np.isfinite(self.step) else float(relaxation.work.sum())
        if step <= 0.0:
            return  # Operators that take no time: there is nothing to divide into ticks.
        parts = list(parts_of(relaxation, _WHOLE, _PART))
        for k, part in enumerate(parts):
            # The first part is where the most is to be gained: half of the time, then half again.
            share = 1.0 if k == len(parts) - 1 else 0.5
            self._search(relaxation, limits, part, step, time.monotonic() + share * self.left)

    def _search(
        self, relaxation: Relaxation, limits: Limits, part: Part, step: float, until: float
    ) -> None:
        """Proves what one part does until that time: in coarse ticks, then in fine ones."""
        for ticks in (_COARSE_TICKS, _FINE_TICKS):
            prove = partial(self._prove, relaxation, limits, part, ticks)
            if not self._refute(prove, step, until):
                return

    def _refute(self, prove: Callable[..., bool], step: float, until: float) -> bool:
        """Refutes steps between the bound and the one known. True where nothing is left for the
        model to prove, False where the time was up or the gap is closed."""

        def left() -> float:
            return until - time.monotonic()

        shared = servers_are_devices(self.problem)
        if prove(step, left() * _PLAIN_TIME, network=False) and not shared:
            return True
        high = step
        while left() > _LEAST_SECONDS and high > self.best.seconds * (1 + _CLOSE):
            trial = self.best.seconds + _TRIAL_AT * (high - self.best.seconds)
            if prove(trial, left() * _TRIAL_TIME, network=shared):
                return True
            if self.best.seconds < trial * (1 - _CLOSE):
                high = trial
        return False

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def _prove(
        self,
        relaxation: Relaxation,
        limits: Limits,
        part: Part,
        ticks: int,
        horizon: float,
        seconds: float,
        *,
        network: bool,
    ) -> bool:
        """Improves the best bound by what holds in every step within the horizon; network: with
        what servers must share, which makes a larger model. True where the model has no more."""
        forced, _ = tightened(relaxation, limits, horizon, _ROUNDS)
        if forced is None:
            self._improve(horizon, "contradiction: no shorter step can be")
            return False
        from ortools.sat.python import cp_model

        cut = cut_out(forced, part)
        machines = machines_for(machines_of(self.problem), part, relaxation.operators)
        exact = ExactModel(cut, machines, horizon, ticks)
        if network:
            tensors = sent_tensors(self.problem, part.kept)
            add_rates(exact, self.problem, tensors)
            add_volumes(exact, self.problem, tensors)
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(min(seconds, self.left), 0.01)
        solver.parameters.num_workers = self.workers
        solver.parameters.linearization_level = 2
        reason = f"exact search over placements and orders{part.where}, transfers at the best rates"
        solver.best_bound_callback = lambda b: self._improve(b * exact.tick, reason)
        status = solver.solve(exact.model)
        if status == cp_model.INFEASIBLE:
            self._improve(horizon, reason)
        elif status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            self._improve(solver.best_objective_bound * exact.tick, reason)
        return bool(status == cp_model.OPTIMAL)

    def _improve(self, seconds: float, reason: str) -> None:
        seconds = min(seconds, self.step) * (1 - ROUNDING)
        if seconds > self.best.seconds:
            self.best = Bound(seconds, reason)
            if self.on_bound is not None:
                self.on_bound(self.best)


def machines_of(problem: Problem) -> Machines:
    seconds = problem.seconds
    held = limits_of(problem, seconds.min(axis=1)).held_bytes
    memory = problem.cluster.memory_bytes
    alike = bool((seconds == seconds[:, :1]).all() and (memory == memory[0]).all())
    if servers_are_devices(problem):
        alike = alike and servers_are_alike(problem)
    return Machines(seconds, held, memory, alike, problem.model == "thesis")
