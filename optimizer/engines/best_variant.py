"""Finds which variant of a step to place: into how many micro-batches and shards it is cut.

The variants are graphs of one step. Each has a bound and its starts; those that begin near the best
have a short search, and the best of these is placed. What was not searched lost by its bound, by
how it began, or because there was no time to make its starts: those of large graphs take longer
than all searches, and the graphs with most promise come first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.bounds.memory_limits import refuse_impossible
from placewire.optimizer.engines.auto import starting_solutions
from placewire.optimizer.engines.best_sharing import solution_of
from placewire.optimizer.engines.bundling import seen_by_search
from placewire.optimizer.engines.costing import Costing
from placewire.optimizer.engines.piece_search import piece_solutions
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import (
    BrokenRuleError,
    EngineRefusedError,
    OutOfTimeError,
)
from placewire.optimizer.engines.reporting import JoinedReports
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.placement import Placement, Variant
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.quantities import format_step

# The part of the time or moves that the choice takes; the rest is for the search of what it chose.
_CHOICE_PART = 0.4
# Starts are made for this part of the time. Variants that are left then have a bound alone.
_STARTS_PART = 0.25
# A variant is searched where its best start is at most so many times the shortest of all, and so
# many are at most.
_NEAR, _MOST_SEARCHED = 1.3, 4
# A search of a variant lasts at least so many times as long as its starts took.
_LEAST_TIMES = 2.0


@dataclass(frozen=True)
class Choice:
    """taken: its index among the given problems. starts: solutions of it. left: the settings with
    what time or moves are left. variants: those that may have a placement; the taken one's step is
    known only after its search."""

    taken: int
    starts: tuple[Solution, ...]
    left: SolveSettings
    variants: tuple[Variant, ...]


@dataclass
class _Known:
    """index: among the variants. start_seconds: of its best start, inf where none fits.
    took_seconds: how long it took to know this."""

    index: int
    problem: Problem
    variant: Variant
    start_seconds: float
    took_seconds: float


def best_variant(
    names: Sequence[str],
    problems: Sequence[Problem],
    engine: str,
    settings: SolveSettings,
    reduction: str = "auto",
    progress: Report | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Choice:
    """names, problems: at least two; graphs of one step on one cluster, no two the same. Raises
    InfeasibleError where no variant has a placement within the memories."""
    until = time.monotonic() + settings.time_limit_seconds
    known = _all_known(names, problems, engine, settings, tell)
    known.sort(key=lambda one: (one.start_seconds, one.index))
    near = [one for one in known if one.start_seconds <= known[0].start_seconds * _NEAR]
    near = near[:_MOST_SEARCHED]
    time_left = until - time.monotonic() - (1.0 - _CHOICE_PART) * settings.time_limit_seconds
    if settings.moves is None:
        # A search makes its starts anew: in little more time than they took it would find nothing
        # else.
        took = max(one.took_seconds for one in near)
        while len(near) > 1 and time_left / len(near) < _LEAST_TIMES * took:
            near.pop()
    part = replace(
        settings.part(_CHOICE_PART / len(near)),
        time_limit_seconds=max(time_left, 0.0) / len(near),
        certify=0.0,
    )
    best: tuple[float, _Known, Placement | None] = (float("inf"), near[0], None)
    report = JoinedReports(progress)
    for one in near if len(near) > 1 else ():
        if one.variant.bound_seconds >= best[0]:
            continue
        limit = f"for {part.time_limit_seconds:.0f} s"
        if part.moves is not None:
            limit = f"with {part.moves} moves"
        tell(f"{one.variant.name}: searched {limit}")
        try:
            found = place(one.problem, engine, part, reduction, report.next())
        except (
            InfeasibleError, BrokenRuleError, EngineRefusedError, OutOfTimeError,
        ) as error:  # fmt: skip
            tell(f"{one.variant.name}: {error}")
            continue
        one.variant = one.variant.model_copy(update={"step_seconds": found.step_seconds})
        if found.step_seconds < best[0]:
            best = found.step_seconds, one, found
    _, taken, placement = best
    tell(f"taken: {taken.variant.name}")
    starts = () if placement is None else (solution_of(taken.problem, placement),)
    used = _CHOICE_PART if len(near) > 1 else 0.0
    left = replace(settings.part(1.0 - used), time_limit_seconds=max(until - time.monotonic(), 0.0))
    by_index = sorted(known, key=lambda one: one.index)
    return Choice(taken.index, starts, left, tuple(one.variant for one in by_index))


def _all_known(
    names: Sequence[str],
    problems: Sequence[Problem],
    engine: str,
    settings: SolveSettings,
    tell: Callable[[str], None],
) -> list[_Known]:
    """The variants that may have a placement. Raises InfeasibleError where there is none."""
    known, why, each_operator = list[_Known](), list[InfeasibleError](), list[float]()
    until = time.monotonic() + settings.time_limit_seconds * _STARTS_PART
    for k in _by_promise(problems):
        operators = problems[k].graph.operator_count
        late = False
        # The first takes longer than those after it, because code is loaded.
        if settings.moves is None and len(each_operator) > 1:
            late = time.monotonic() + min(each_operator) * operators > until
        try:
            one = _known(k, names[k], problems[k], engine, starts=not late)
        except InfeasibleError as error:
            why.append(error)
            tell(f"{names[k]}: {error}")
            continue
        known.append(one)
        if late:
            begins = "no time to begin"
        else:
            each_operator.append(one.took_seconds / max(operators, 1))
            begins = "no start fits the memories"
            if math.isfinite(one.start_seconds):
                begins = f"begins at {format_step(one.start_seconds)}"
        bound = format_step(one.variant.bound_seconds)
        tell(f"{names[k]}: {operators} operators, bound {bound}, {begins}")
    if not known:
        raise why[0]
    return known


def _by_promise(problems: Sequence[Problem]) -> list[int]:
    """The problems' indices: those with as many micro-batches as devices before those with more and
    with fewer, and small graphs before large ones."""

    def off(k: int) -> tuple[float, int, int]:
        problem = problems[k]
        parts = int(problem.graph.micro_batch.max(initial=0)) + 1
        ratio = parts / max(len(problem.cluster.devices), 1)
        return abs(math.log2(ratio)), problem.graph.operator_count, k

    return sorted(range(len(problems)), key=off)


def _known(index: int, name: str, problem: Problem, engine: str, *, starts: bool = True) -> _Known:
    """starts: whether to make them, too. Raises InfeasibleError where no placement can fit."""
    began = time.monotonic()
    if engine != "single":
        refuse_impossible(problem)
    alone = best_single(problem)
    seconds = alone[1] if alone is not None else float("inf")
    # How `auto` would begin says how well a variant can be divided, whatever the engine.
    if engine != "single" and starts:
        seen = seen_by_search(problem)
        costing = Costing(seen)
        begun = [*starting_solutions(seen), *piece_solutions(seen)]
        found = (costing.cost(start) for start in begun)
        seconds = min([seconds, *(one.cost for one in found if one.excess == 0.0)])
    variant = Variant(
        name=name,
        structure_hash=problem.graph.structure_hash,
        operators=problem.graph.operator_count,
        step_seconds=None,
        bound_seconds=lower_bound(problem).seconds,
        single_device_seconds=None if alone is None else alone[1],
    )
    return _Known(index, problem, variant, seconds, time.monotonic() - began)
