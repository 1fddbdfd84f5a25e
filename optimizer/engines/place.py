"""The one way from a problem to a checked placement of the user's graph, whatever the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from placewire.optimizer.bounds import Bound, lower_bound
from placewire.optimizer.bounds.memory_limits import refuse_impossible
from placewire.optimizer.check.check import check
from placewire.optimizer.engines.assemble import assemble
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.engines.refusals import EngineRefusedError
from placewire.optimizer.engines.reporting import Clock, Reporter
from placewire.optimizer.engines.schedulers import schedule
from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.reductions.chain import reduce_by_name, unchanged
from placewire.optimizer.reductions.contract import Undo

# Of the time limit, what a stronger bound may take where the gap is still open: more on graphs so
# small that the search has long converged by then.
_BOUND_PART, _BOUND_PART_SMALL, _SMALL = 0.25, 0.5, 600
# With more operators even its first model takes too long.
_BOUND_UP_TO = 6_000
# Seconds per operator that writing the answer down and checking it take, and what part of the time
# limit may be set aside for that.
_CLOSING_SECONDS, _CLOSING_PART = 8e-5, 0.3
# What the allocator of rates may take after an engine, as a part of the time limit.
_RATES_PART = 0.15


def place(
    problem: Problem,
    engine: str,
    settings: SolveSettings,
    reduction: str = "auto",
    progress: Report | None = None,
    starts: Sequence[Solution] = (),
) -> Placement:
    """Reduce, solve, expand, refine (auto), schedule, allocate rates, bound (auto), check.

    starts: solutions of the graph as given that `auto` may begin with, beside its own.

    Raises InfeasibleError where no placement within the memories was found, EngineRefusedError
    where the problem is none that the engine takes, OutOfTimeError where it had none in time,
    UnknownMethodError for an engine, scheduler or reduction of no such name. An engine's answer
    that breaks a rule is our mistake, and an AssertionError.
    """
    method = ENGINES.load(engine)
    clock = Clock()
    with Reporter(progress, clock) as reporter:
        bound = lower_bound(problem)
        if engine != "single":
            refuse_impossible(problem)
        alone = best_single(problem)
        single_seconds = None if alone is None else alone[1]
        reporter.known(incumbent=single_seconds or np.inf, bound=bound.seconds)
        clock.stage("bound")
        if reduction == "auto" or engine == "single":
            reduction = method.reduction or "auto"
        small, undo, words = reduce_by_name(problem, reduction)
        clock.stage("reduce")
        if (refusal := method.accepts(small)) is not None:
            raise EngineRefusedError(refusal.what)
        if engine == "auto":
            solution = _searched(problem, small, undo, reduction, settings, starts, reporter, clock)
        else:
            within = _for_engine(problem, settings, clock)
            found = method.solve(small, within, reporter.aside)
            device, priority = undo(found.device, found.priority)
            solution = Solution(device, priority, found.rates)
            clock.stage("solve")
        solution = schedule(problem, solution, settings.scheduler)
        best = score(problem, solution, until=_rates_until(problem, engine, settings, clock))
        if best.excess > 0.0:
            raise InfeasibleError(
                f"{engine} found a placement that exceeds a device's memory by {best.excess:.1%}; "
                "engine auto searches within the memories"
            )
        clock.stage("rates")
        reporter.known(incumbent=best.step_seconds)
        if engine == "auto" and _strengthens(problem, settings):
            bound = _stronger(problem, bound, best.step_seconds, settings, clock, reporter)
        placement = assemble(
            problem, best.solution, bound, single_device_seconds=single_seconds,
            engine=engine, reduction=words, seed=settings.seed, wall_seconds=clock.stages,
        )  # fmt: skip
        violations = check(problem.graph, placement)
        clock.stage("check")
    if violations:
        raise AssertionError(f"engine {engine} broke a rule: {violations[0]}")
    return placement.model_copy(update={"wall_seconds": dict(clock.stages)})


def _searched(
    problem: Problem,
    small: Problem,
    undo: Undo,
    reduction: str,
    settings: SolveSettings,
    starts: Sequence[Solution],
    reporter: Reporter,
    clock: Clock,
) -> Solution:
    """On the reduced problem, under `auto` on milder ones between it and the graph as given, and on
    the graph as given."""
    from placewire.optimizer.engines import auto
    from placewire.optimizer.engines.levels import level_sizes, milder

    few, many = small.graph.operator_count, problem.graph.operator_count
    same = unchanged(problem, small)
    levels: list[auto.Level] = [] if same else [lambda: (small, undo)]
    if levels and reduction == "auto":
        levels += [partial(milder, problem, size) for size in level_sizes(few, many)]
    until = _search_until(problem, settings, clock)
    return auto.search(problem, levels, settings, until, starts, reporter, clock)


def _for_engine(problem: Problem, settings: SolveSettings, clock: Clock) -> SolveSettings:
    """With what is left of the time limit, less what comes after the engine."""
    rates = _RATES_PART * settings.time_limit_seconds if problem.decides_rates else 0.0
    left = clock.began + settings.time_limit_seconds - time.monotonic()
    left -= rates + _closing_seconds(problem, settings)
    return replace(settings, time_limit_seconds=max(left, 0.0))


def _rates_until(problem: Problem, engine: str, settings: SolveSettings, clock: Clock) -> float:
    """time.monotonic(); without end with a budget of moves, and for `auto`, whose search knows good
    rates already."""
    if engine == "auto" or settings.moves is not None:
        return math.inf
    return clock.began + settings.time_limit_seconds - _closing_seconds(problem, settings)


def _closing_seconds(problem: Problem, settings: SolveSettings) -> float:
    needed = _CLOSING_SECONDS * problem.graph.operator_count
    return min(needed, _CLOSING_PART * settings.time_limit_seconds)


def _strengthens(problem: Problem, settings: SolveSettings) -> bool:
    """Not with a budget of moves, which gives the same answer on every machine."""
    return settings.moves is None and problem.graph.operator_count <= _BOUND_UP_TO


def _bound_part(problem: Problem, settings: SolveSettings) -> float:
    if settings.certify is not None:
        return settings.certify
    return _BOUND_PART_SMALL if problem.graph.operator_count <= _SMALL else _BOUND_PART


def _search_until(problem: Problem, settings: SolveSettings, clock: Clock) -> float:
    part = 1.0 - (_bound_part(problem, settings) if _strengthens(problem, settings) else 0.0)
    limit = part * settings.time_limit_seconds - _closing_seconds(problem, settings)
    return clock.began + limit


def _stronger(
    problem: Problem,
    bound: Bound,
    step_seconds: float,
    settings: SolveSettings,
    clock: Clock,
    reporter: Reporter,
) -> Bound:
    if step_seconds <= 0 or 1.0 - bound.seconds / step_seconds <= settings.gap:
        return bound
    left = clock.began + settings.time_limit_seconds - time.monotonic()
    seconds = min(
        left - _closing_seconds(problem, settings),
        _bound_part(problem, settings) * settings.time_limit_seconds,
    )
    if seconds > 0:
        from placewire.optimizer.bounds.strong import strong_bound

        bound = strong_bound(
            problem, step_seconds, seconds, on_bound=lambda b: reporter.known(bound=b.seconds)
        )
    clock.stage("certify")
    return bound
