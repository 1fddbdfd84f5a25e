"""Finds a checked placement for a problem with any engine; the one way that all callers use."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from placewire.optimizer.bounds import Bound, strong_bound
from placewire.optimizer.bounds.memory_limits import refuse_impossible
from placewire.optimizer.bounds.quick import proven
from placewire.optimizer.check.check import check
from placewire.optimizer.engines.assemble import assemble
from placewire.optimizer.engines.bundling import Bundled, best_bundled, seen_by_search, unbundled
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.engines.pieces import has_pieces
from placewire.optimizer.engines.refusals import BrokenRuleError, EngineRefusedError
from placewire.optimizer.engines.reporting import Clock, Reporter
from placewire.optimizer.engines.schedulers import schedule
from placewire.optimizer.engines.scoring import Scored, score
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import TIE, Report, Solution
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.reductions.chain import in_words, reduce_by_name, unchanged
from placewire.optimizer.reductions.contract import Undo
from placewire.optimizer.reductions.mild import reduce_for_search
from placewire.optimizer.reductions.written_updates import merge_updates

# The part of the time limit that a stronger bound may take where the gap is still open: more on
# graphs of at most _SMALL operators, whose search converges long before.
_BOUND_PART, _BOUND_PART_SMALL, _SMALL = 0.25, 0.5, 600
# In a large step of micro-batches no part of the graph is critical alone, and a stronger bound is
# rare.
_BOUND_PART_OF_PIECES = 0.1
# With more operators even the first model of a stronger bound takes too long.
_BOUND_UP_TO = 6_000
# Seconds per operator to write down and check the answer, and its largest part of the limit; with
# micro-batches there are more messages, which the check follows one by one.
_CLOSING_SECONDS, _CLOSING_SECONDS_OF_MANY, _CLOSING_PART = 8e-5, 2.5e-4, 0.3
# With more operators, so many times as long as the bounds took on this machine; 224,000 operators
# on 16 devices took from 1.4 to 2.7 times as long.
_MEASURED_FROM, _CLOSING_TIMES, _CLOSING_PART_MEASURED = 40_000, 3.0, 0.4
# A start of the search is tried with bundles where its step is at most so many times as long as the
# shortest; so many starts are, in this part of the time limit.
_NEAR_BEST, _MOST_NEAR, _BUNDLE_PART = 1.1, 3, 0.1
# The part of the time limit that the allocator of rates may take after an engine.
_RATES_PART = 0.15


@dataclass(frozen=True)
class Placed:
    """solutions: of which a further search may go on: that of the placement, and the best layout
    that was found on the way."""

    placement: Placement
    solutions: tuple[Solution, ...]


def place(
    problem: Problem,
    engine: str,
    settings: SolveSettings,
    reduction: str = "auto",
    progress: Report | None = None,
    starts: Sequence[Solution] = (),
) -> Placement:
    """Only the placement of `placed`."""
    return placed(problem, engine, settings, reduction, progress, starts).placement


def placed(
    problem: Problem,
    engine: str,
    settings: SolveSettings,
    reduction: str = "auto",
    progress: Report | None = None,
    starts: Sequence[Solution] = (),
) -> Placed:
    """Reduces, solves, expands, refines (auto), schedules, allocates rates, bounds (auto), checks.

    starts: solutions of the graph as given with which `auto` may begin, beside its own.

    Raises InfeasibleError where no placement within the memories was found, EngineRefusedError
    where the engine does not take the problem, OutOfTimeError where the engine found nothing in
    time, UnknownMethodError where the engine, scheduler or reduction does not exist, and
    BrokenRuleError where the engine's answer breaks a rule.
    """
    method = ENGINES.load(engine)
    clock = Clock()
    # What `auto` finds gets bundles, so that fewer messages are left than its search counts.
    searches = engine == "auto"
    seen = seen_by_search(problem) if searches else problem
    with Reporter(progress, clock) as reporter:
        bound, took = proven(problem)
        budget = _Budget(seen, settings, clock, took)
        if engine != "single":
            refuse_impossible(problem)
        alone = best_single(problem)
        single_seconds = None if alone is None else alone[1]
        reporter.known(incumbent=single_seconds or np.inf, bound=bound.seconds)
        clock.stage("bound")
        if reduction == "auto" or engine == "single":
            reduction = method.reduction or "auto"
        reduction, small, undo, words = _reduced(problem, seen, reduction, searches)
        clock.stage("reduce")
        if (refusal := method.accepts(small)) is not None:
            raise EngineRefusedError(refusal.what)
        others: Sequence[Found] = []
        if searches:
            searched = _searched(budget, small, undo, reduction, starts, reporter, bound.seconds)
            solution, others = searched
        else:
            found = method.solve(small, budget.for_engine, reporter.aside)
            device, priority = undo(found.device, found.priority)
            solution = Solution(device, priority, found.rates, found.cuts)
            clock.stage("solve")
        solution = schedule(problem, solution, settings.scheduler)
        # `auto` knows good rates already, and a budget of moves sets no time limit.
        unlimited = searches or settings.moves is not None
        best = score(seen, solution, until=math.inf if unlimited else budget.end)
        if best.excess > 0.0:
            raise InfeasibleError(
                f"{engine} found a placement that exceeds a device's memory by {best.excess:.1%}; "
                "engine auto searches within the memories"
            )
        clock.stage("rates")
        reporter.known(incumbent=best.step_seconds)
        made = _bundled(problem, budget, best, others, alone, searches=searches)
        if searches and budget.strengthens:
            bound = _stronger(problem, budget, bound, made.timeline.step_seconds, reporter)
        placement = assemble(
            problem, made, bound, single_device_seconds=single_seconds, engine=engine,
            reduction=words, seed=settings.seed, wall_seconds=clock.stages,
        )  # fmt: skip
        violations = check(problem.graph, placement)
        clock.stage("check")
    if violations:
        raise BrokenRuleError(
            f"engine {engine} broke a rule: {violations[0]}; use another engine, and report this "
            f"to {ENGINES.package(engine)}"
        )
    of_layouts = [one.solution for one in others if one.layout is not None]
    solutions = made.solution, *of_layouts[:1]
    return Placed(placement.model_copy(update={"wall_seconds": dict(clock.stages)}), solutions)


def _reduced(
    problem: Problem, seen: Problem, reduction: str, searches: bool
) -> tuple[str, Problem, Undo, str]:
    """(the reduction that the search knows of, the reduced problem, its undo, what was done)."""
    if reduction != "auto" or not searches:
        return reduction, *reduce_by_name(seen, reduction)
    # Whole pieces are the coarse graph.
    pieces = has_pieces(problem)
    small, undo = merge_updates(seen) if pieces else reduce_for_search(seen)
    return "none" if pieces else reduction, small, undo, in_words(seen, small, reduction)


def closing_seconds(problem: Problem, limit: float, bound_took: float) -> float:
    """How much of a time limit is kept to write down and check the answer. bound_took: seconds."""
    graph = problem.graph
    if graph.operator_count > _MEASURED_FROM:
        return min(_CLOSING_TIMES * bound_took, _CLOSING_PART_MEASURED * limit)
    is_cut = graph.micro_batch.max(initial=-1) > 0
    each = _CLOSING_SECONDS_OF_MANY if is_cut else _CLOSING_SECONDS
    return min(each * graph.operator_count, _CLOSING_PART * limit)


@dataclass(frozen=True)
class _Budget:
    """Divides the time limit of one solve. Times are those of time.monotonic(). proof_seconds: how
    long the bound took."""

    problem: Problem
    settings: SolveSettings
    clock: Clock
    proof_seconds: float

    @property
    def end(self) -> float:
        """When the answer must be there, to be written down and checked."""
        limit = self.settings.time_limit_seconds
        return self.clock.began + limit - closing_seconds(self.problem, limit, self.proof_seconds)

    @property
    def for_engine(self) -> SolveSettings:
        """The settings with the time that is left for the engine itself."""
        rates = _RATES_PART if self.problem.decides_rates else 0.0
        left = self.end - time.monotonic() - rates * self.settings.time_limit_seconds
        return replace(self.settings, time_limit_seconds=max(left, 0.0))

    @property
    def strengthens(self) -> bool:
        """Whether to search a stronger bound: not with a budget of moves, which is repeatable."""
        return self.settings.moves is None and self.problem.graph.operator_count <= _BOUND_UP_TO

    @property
    def bound_seconds(self) -> float:
        part = self.settings.certify
        if part is None:
            is_small = self.problem.graph.operator_count <= _SMALL
            part = _BOUND_PART_SMALL if is_small else _BOUND_PART
            if not is_small and has_pieces(self.problem):
                part = _BOUND_PART_OF_PIECES
        return part * self.settings.time_limit_seconds

    @property
    def search_end(self) -> float:
        """When the search of `auto` ends."""
        bundling = 0.0
        if self.problem.message_seconds > 0.0:
            bundling = _BUNDLE_PART * self.settings.time_limit_seconds
        return self.end - bundling - (self.bound_seconds if self.strengthens else 0.0)


def _searched(
    budget: _Budget,
    small: Problem,
    undo: Undo,
    reduction: str,
    starts: Sequence[Solution],
    reporter: Reporter,
    bound_seconds: float,
) -> tuple[Solution, list[Found]]:
    """Searches the reduced problem, with reduction `auto` milder ones too, and the given graph."""
    # Another engine does not load these.
    from placewire.optimizer.engines import auto
    from placewire.optimizer.engines.levels import level_sizes, milder, with_heavy_updates

    problem = budget.problem
    few, many = small.graph.operator_count, problem.graph.operator_count
    levels: list[auto.Level] = [] if unchanged(problem, small) else [lambda: (small, undo)]
    if levels and reduction == "auto":
        if (heavy := with_heavy_updates(problem, few)) is not None:
            levels.append(lambda: heavy)
        levels += [partial(milder, problem, size) for size in level_sizes(few, many)]
    how = budget.settings, budget.search_end, starts, reporter, budget.clock, bound_seconds
    return auto.search(problem, levels, *how)


def _bundled(
    problem: Problem,
    budget: _Budget,
    best: Scored,
    others: Sequence[Found],
    alone: tuple[Solution, float] | None,
    *,
    searches: bool,
) -> Bundled:
    """What is written down: only `auto` joins tensors. alone: on the best single device."""
    if not searches:
        return unbundled(problem, best.solution)
    counts = budget.problem.message_seconds > 0.0
    near = _near(budget.problem, best, others) if counts else []
    until = math.inf
    if budget.settings.moves is None:
        until = budget.end - (budget.bound_seconds if budget.strengthens else 0.0)
    made = best_bundled(problem, best.solution, near, until)
    budget.clock.stage("bundle")
    # The search counts a part of what messages take, and must not lose to one device by it.
    if alone is not None and alone[1] <= made.timeline.step_seconds * (1 + TIE):
        return unbundled(problem, alone[0])
    return made


def _near(seen: Problem, best: Scored, others: Sequence[Found]) -> list[Solution]:
    """The best of the starts. The search counts messages roughly, so that with bundles a start may
    be better than what was found."""
    found = sorted(others, key=lambda one: one.key)
    near = [
        one for one in found if one.excess == 0.0 and one.cost <= best.step_seconds * _NEAR_BEST
    ]
    scored = (score(seen, one.solution, optimise_rates=False) for one in near[:_MOST_NEAR])
    return [one.solution for one in scored if one.excess == 0.0]


def _stronger(
    problem: Problem, budget: _Budget, bound: Bound, step_seconds: float, reporter: Reporter
) -> Bound:
    if step_seconds <= 0 or 1.0 - bound.seconds / step_seconds <= budget.settings.gap:
        return bound
    seconds = min(budget.end - time.monotonic(), budget.bound_seconds)
    if seconds > 0:
        bound = strong_bound(
            problem,
            step_seconds,
            seconds,
            on_bound=lambda b: reporter.known(bound=b.seconds),
        )
    budget.clock.stage("certify")
    return bound
