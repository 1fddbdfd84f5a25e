"""The strong bound: cases, then CP-SAT, on the contention-free relaxation, while there is time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from placewire.optimizer.bounds import exact_rates
from placewire.optimizer.bounds.bound import ROUNDING, Bound
from placewire.optimizer.bounds.cases import Cases
from placewire.optimizer.bounds.contradiction import tightened
from placewire.optimizer.bounds.exact_model import ExactModel
from placewire.optimizer.bounds.exact_volumes import add_volumes
from placewire.optimizer.bounds.partial_graph import Part, cut_out, machines_for, parts_of
from placewire.optimizer.bounds.quick import lower_bound
from placewire.optimizer.bounds.subject import Subject, subject_of
from placewire.optimizer.problem import Problem

_ROUNDS = 30
# A graph with more operators that take time is not modelled whole; parts have so many at most.
_WHOLE, _PART = 600, 150
# Times are whole ticks, of which the step to refute has so many.
_COARSE_TICKS, _FINE_TICKS = 8_000, 400_000
# With less time left no further proof is tried: building its model alone takes a while.
_LEAST_SECONDS = 0.2
# The next step to refute lies at _TRIAL_AT of the way from the bound to the shortest step known and
# may take _TRIAL_TIME of the time left; the first proof, of that step itself, may take _PLAIN_TIME.
_TRIAL_AT, _TRIAL_TIME = 0.5, 0.35
_PLAIN_TIME = 0.25
_CLOSE = 1e-4
_NONE_SHORTER = "contradiction: no shorter step is possible"
# The part of the time for proofs by cases, of which one may take _CASE_TIME of what is left. They
# try a step first that is longer than the bound by _CASES_STRIDE, and none any more that is longer
# by less than _CASES_CLOSE.
_CASES_TIME, _CASE_TIME, _CASES_STRIDE, _CASES_CLOSE = 0.4, 0.4, 0.02, 1e-3

OnBound = Callable[[Bound], None]


def strong_bound(
    problem: Problem,
    incumbent_seconds: float,
    time_limit_seconds: float,
    workers: int = 2,
    on_bound: OnBound | None = None,
) -> Bound:
    """The best lower bound proven in the time: at least `lower_bound`, at most incumbent_seconds,
    the step of a known placement (inf: none). on_bound is called with each better bound. A proof
    that fails costs no answer: the bound is what was proven before, and its reason says so.

    Raises InfeasibleError where an operator can run on no device of the cluster.
    """
    until = time.monotonic() + time_limit_seconds
    quick = lower_bound(problem)
    hears = on_bound or (lambda bound: None)
    search = _Search(problem, incumbent_seconds, until, workers, hears, quick)
    try:
        search.run()
    except Exception as error:  # whatever the solver raises: a placement waits for its bound
        failed = f"a stronger proof failed ({type(error).__name__}: {error})"
        return replace(search.best, reason=f"{search.best.reason}; {failed}")
    return search.best


@dataclass
class _Search:
    """step: seconds of the shortest step known, inf where none is, and from `run` on those to which
    all proofs are confined; until: time.monotonic() at which to stop."""

    problem: Problem
    step: float
    until: float
    workers: int
    on_bound: OnBound
    best: Bound

    def run(self) -> None:
        problem = self.problem
        self.on_bound(self.best)
        if len(problem.cluster.devices) < 2 or self.step <= self.best.seconds * (1 + _CLOSE):
            return
        if not np.isfinite(self.step):
            self.step = float(problem.seconds.min(axis=1).sum())
        step = self.step
        if min(step, self.best.seconds) <= 0.0:
            return  # No operator takes time: there is nothing to divide into ticks.
        subject = subject_of(problem, step)
        if subject is None:
            self._improve(step, _NONE_SHORTER)
            return
        self._refute_by_cases(subject, step)
        parts = list(parts_of(subject.relaxation, _WHOLE, _PART))
        for k, part in enumerate(parts):
            # Each part but the last gets half of the time left, as the first promises most.
            share = 1.0 if k == len(parts) - 1 else 0.5
            until = time.monotonic() + share * self.left
            for ticks in (_COARSE_TICKS, _FINE_TICKS):
                prove = partial(self._prove, subject, part, ticks)
                if not self._refute(prove, step, until):
                    break

    def _refute(self, prove: Callable[..., bool], step: float, until: float) -> bool:
        """Refutes steps between the bound and the step known. Returns True where the model can
        prove nothing more, False where the time is up or the gap is closed."""

        def left() -> float:
            return until - time.monotonic()

        shared = exact_rates.servers_are_devices(self.problem)
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

    def _refute_by_cases(self, subject: Subject, step: float) -> None:
        """Goes up from the bound in strides that double until a step is not refuted, and then
        halves what lies between."""
        until = time.monotonic() + _CASES_TIME * self.left
        reason = "cases: on which device each operator is"
        high, stride = step, _CASES_STRIDE
        while time.monotonic() < until and stride > _CASES_CLOSE:
            trial = self.best.seconds * (1 + stride)
            if trial < high:
                forced, _ = tightened(subject.relaxation, subject.limits, trial, _ROUNDS)
                now = time.monotonic()
                one_until = now + _CASE_TIME * (until - now)
                if forced is None or Cases(forced, subject.messages, trial, one_until).refuted():
                    self._improve(trial, reason)
                    stride *= 2
                    continue
                high = trial
            stride = (high / self.best.seconds - 1) / 2

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def _prove(
        self,
        subject: Subject,
        part: Part,
        ticks: int,
        horizon: float,
        seconds: float,
        *,
        network: bool,
    ) -> bool:
        """Improves the best bound by what holds in every step within the horizon. network: the
        model includes how servers share NICs. Returns True where it can prove nothing more."""
        forced, _ = tightened(subject.relaxation, subject.limits, horizon, _ROUNDS)
        if forced is None:
            self._improve(horizon, _NONE_SHORTER)
            return False
        from ortools.sat.python import cp_model

        cut = cut_out(forced, part)
        machines = machines_for(subject.machines, part, subject.relaxation.operators)
        exact = ExactModel(cut, machines, horizon, ticks)
        if network:
            tensors = exact_rates.sent_tensors(self.problem, subject.home, part.kept)
            exact_rates.add_rates(exact, self.problem, tensors)
            add_volumes(exact, self.problem, tensors)
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(min(seconds, self.left), 0.01)
        solver.parameters.num_workers = self.workers
        solver.parameters.linearization_level = 2
        reason = f"exact search over placements and orders{part.where}, transfers at the best rates"
        # The model knows of no step beyond its horizon, whatever the solver says of it.
        solver.best_bound_callback = lambda b: self._improve(min(b * exact.tick, horizon), reason)
        status = solver.solve(exact.model)
        if status == cp_model.INFEASIBLE:
            self._improve(horizon, reason)
        elif status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            self._improve(min(solver.best_objective_bound * exact.tick, horizon), reason)
        return bool(status == cp_model.OPTIMAL)

    def _improve(self, seconds: float, reason: str) -> None:
        seconds = min(seconds, self.step) * (1 - ROUNDING)
        if seconds > self.best.seconds:
            self.best = Bound(seconds, reason)
            self.on_bound(self.best)
