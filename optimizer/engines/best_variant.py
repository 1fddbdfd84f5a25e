"""Finds which variant of a step to place: into how many micro-batches and shards it is cut.

The variants are graphs of one step. Each has a bound and its starts; those that begin near the best
have a short search, and the best of these is placed. What was not searched lost by its bound, or by
how it began.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.bounds.bound import ROUNDING
from placewire.optimizer.bounds.load import share_of_load
from placewire.optimizer.bounds.memory_limits import refuse_impossible
from placewire.optimizer.engines.auto import costed_starts, of_merged
from placewire.optimizer.engines.bundling import seen_by_search
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.piece_search import few_solutions, grid_solutions
from placewire.optimizer.engines.place import placed
from placewire.optimizer.engines.refusals import (
    BrokenRuleError,
    EngineRefusedError,
    OutOfTimeError,
)
from placewire.optimizer.engines.reporting import JoinedReports
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.placement import Variant
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.quantities import format_step

# The part of the time or moves that the choice takes; the rest is for the search of what it chose.
# Graphs of at most _SMALL operators are searched so fast that one more variant is worth more than
# a longer search of one; of these the better half is searched again, until one is left.
_CHOICE_PART, _CHOICE_PART_OF_SMALL, _SMALL = 0.4, 0.8, 3_000
# All starts of variants are made until this part of the time is over, and a few for each until that
# one is.
_STARTS_PART, _FEW_STARTS_PART = 0.25, 0.35
# A variant is searched where its best start is at most so many times the shortest of all, and so
# many are at most.
_NEAR, _MOST_SEARCHED = 1.3, 4
# A search of a variant lasts at least so many times as long as its starts took.
_LEAST_TIMES = 2.0
# A start counts messages roughly, so that its step may be longer by this part.
_TOO_LONG = 1.05
_KEPT = "_work_seconds"
# So many variants begin, and are bounded, at once: most of that time is spent in compiled code.
_THREADS = 2


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
    """index: among the variants. alone_seconds: on one device, None where it does not fit.
    start_seconds: of its best start, inf where none fits; starts: with which its search begins,
    none where one device is best. took_seconds: how long its starts took. step_seconds: what its
    search found."""

    index: int
    name: str
    problem: Problem
    alone_seconds: float | None
    start_seconds: float = math.inf
    starts: tuple[Solution, ...] = ()
    took_seconds: float = 0.0
    bound_seconds: float = 0.0
    step_seconds: float | None = None

    def prove(self, engine: str, among: Sequence[_Known]) -> None:
        """Bounds the step, by its work alone where this is enough."""
        enough = _is_hopeless(self.problem, engine, among)
        bound = _work_seconds if enough else lambda problem: lower_bound(problem).seconds
        self.bound_seconds = bound(self.problem)

    def order(self) -> tuple[float, int]:
        """The shortest start first."""
        return self.start_seconds, self.index

    def found(self) -> float:
        return math.inf if self.step_seconds is None else self.step_seconds

    def consider(self, starts: Iterable[Found]) -> None:
        """starts: of the problem as a search sees it."""
        for found in starts:
            if found.excess == 0.0 and found.cost < self.start_seconds:
                self.start_seconds, self.starts = found.cost, (found.solution,)

    @property
    def variant(self) -> Variant:
        return Variant(
            name=self.name,
            structure_hash=self.problem.graph.structure_hash,
            operators=self.problem.graph.operator_count,
            step_seconds=self.step_seconds,
            bound_seconds=self.bound_seconds,
            single_device_seconds=self.alone_seconds,
        )


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
    known = _all_begun(names, problems, engine, settings, tell)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(partial(_Known.prove, engine=engine, among=known), known))
    for one in known:
        operators, bound = one.problem.graph.operator_count, format_step(one.bound_seconds)
        begins = "no start fits the memories"
        if _is_hopeless(one.problem, engine, known):
            begins = f"cannot be shorter than {known[0].name}"
        elif math.isfinite(one.start_seconds):
            begins = f"begins at {format_step(one.start_seconds)}"
        tell(f"{one.name}: {operators} operators, bound {bound}, {begins}")
    near = [one for one in known if one.start_seconds <= known[0].start_seconds * _NEAR]
    near = near[:_MOST_SEARCHED]
    is_small = all(one.problem.graph.operator_count <= _SMALL for one in near)
    choice_part = _CHOICE_PART_OF_SMALL if is_small else _CHOICE_PART
    time_left = until - time.monotonic() - (1.0 - choice_part) * settings.time_limit_seconds
    if settings.moves is None:
        # A search makes its starts anew: in little more time than they took it would find nothing
        # else.
        took = max(one.took_seconds for one in near)
        least = _LEAST_TIMES * took
        while len(near) > 1 and time_left < least * len(near) * _rounds(len(near), is_small):
            near.pop()
    part = replace(settings.part(choice_part), time_limit_seconds=max(time_left, 0.0), certify=0.0)
    several, report = len(near) > 1, JoinedReports(progress)
    for rounds in range(_rounds(len(near), is_small), 0, -1):
        near = _better_half(near, engine, part.part(1.0 / rounds), reduction, report, tell)
        part = part.part(1.0 - 1.0 / rounds)
    taken = near[0]
    tell(f"taken: {taken.name}")
    used = choice_part if several else 0.0
    left = replace(settings.part(1.0 - used), time_limit_seconds=max(until - time.monotonic(), 0.0))
    by_index = sorted(known, key=lambda one: one.index)
    return Choice(taken.index, taken.starts, left, tuple(one.variant for one in by_index))


def _rounds(variants: int, is_small: bool) -> int:
    """How often so many variants are searched until one is taken."""
    halvings = math.ceil(math.log2(variants))
    return halvings if is_small else min(halvings, 1)


def _better_half(
    near: Sequence[_Known],
    engine: str,
    part: SolveSettings,
    reduction: str,
    report: JoinedReports,
    tell: Callable[[str], None],
) -> list[_Known]:
    """Searches each for an equal part of the time or moves, from what was found of it before; the
    better half, the shortest step first."""
    each, best = part.part(1.0 / len(near)), math.inf
    for one in near:
        if one.bound_seconds >= best:
            continue
        limit = f"for {each.time_limit_seconds:.0f} s"
        if each.moves is not None:
            limit = f"with {each.moves} moves"
        tell(f"{one.name}: searched {limit}")
        try:
            found = placed(one.problem, engine, each, reduction, report.next(), one.starts)
        except (
            InfeasibleError, BrokenRuleError, EngineRefusedError, OutOfTimeError,
        ) as error:  # fmt: skip
            tell(f"{one.name}: {error}")
            continue
        step_seconds = found.placement.step_seconds
        if one.step_seconds is None or step_seconds < one.step_seconds:
            one.step_seconds, one.starts = step_seconds, found.solutions
        best = min(best, one.step_seconds)
    found_any = [one for one in near if one.step_seconds is not None] or near[:1]
    return sorted(found_any, key=_Known.found)[: (len(near) + 1) // 2]


def _all_begun(
    names: Sequence[str],
    problems: Sequence[Problem],
    engine: str,
    settings: SolveSettings,
    tell: Callable[[str], None],
) -> list[_Known]:
    """The variants that may have a placement, the shortest start first, without their bounds. Each
    has a few starts first, and then all of them while there is time, from the shortest on. Raises
    InfeasibleError where there is none."""
    now = time.monotonic()
    few_until = now + settings.time_limit_seconds * _FEW_STARTS_PART
    until = now + settings.time_limit_seconds * _STARTS_PART
    begun, why = list[_Known](), list[InfeasibleError]()
    each_operator = math.inf  # The first takes longer than those after it: code is loaded.
    for k in _by_promise(problems):
        operators = max(problems[k].graph.operator_count, 1)
        expected = each_operator * operators if len(begun) > 1 else 0.0
        late = bool(begun) and settings.moves is None and time.monotonic() + expected > few_until
        starts = not late and not _is_hopeless(problems[k], engine, begun)
        try:
            one = _begun(k, names[k], problems[k], engine, starts=starts)
        except InfeasibleError as error:
            why.append(error)
            tell(f"{names[k]}: {error}")
            continue
        begun.append(one)
        if starts:
            each_operator = min(each_operator, one.took_seconds / operators)
    if not begun:
        raise why[0]
    if engine != "single":
        able = [one for one in begun if not _is_hopeless(one.problem, engine, begun)]
        _begin_with_all(sorted(able, key=_Known.order), until, settings)
    return sorted(begun, key=_Known.order)


def _begin_with_all(variants: Sequence[_Known], until: float, settings: SolveSettings) -> None:
    """Makes all starts of these variants, until time.monotonic() is `until`. Those that are left
    are expected to take as long for each operator."""
    each_operator = 0.0
    limit = until if settings.moves is None else math.inf

    def begin(one: _Known) -> None:
        nonlocal each_operator
        operators = max(one.problem.graph.operator_count, 1)
        expected = each_operator * operators
        if settings.moves is None and time.monotonic() + expected > until:
            one.took_seconds = max(one.took_seconds, expected)
            return
        began = time.monotonic()
        seen = seen_by_search(one.problem)
        one.consider(
            of_merged(seen, lambda given: [*costed_starts(given), *grid_solutions(given, limit)])
        )
        one.took_seconds = time.monotonic() - began
        each_operator = one.took_seconds / operators

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(begin, variants))


def _is_hopeless(problem: Problem, engine: str, begun: Sequence[_Known]) -> bool:
    """Whether its work alone takes all devices longer than another variant's start. Another engine
    than `auto` may refuse that one, or place it worse."""
    shortest = min((one.start_seconds for one in begun), default=math.inf)
    if engine != "auto" or not math.isfinite(shortest):
        return False
    return _work_seconds(problem) >= shortest * _TOO_LONG


def _work_seconds(problem: Problem) -> float:
    """No step is shorter, because its work takes all devices so long. Kept with the problem."""
    if _KEPT not in problem.__dict__:
        work = share_of_load(problem.seconds).sum()
        problem.__dict__[_KEPT] = float(work) * (1 - ROUNDING)
    seconds: float = problem.__dict__[_KEPT]
    return seconds


def _by_promise(problems: Sequence[Problem]) -> list[int]:
    """The problems' indices: those with as many micro-batches as devices before those with more and
    with fewer, and small graphs before large ones."""

    def off(k: int) -> tuple[float, int, int]:
        problem = problems[k]
        parts = int(problem.graph.micro_batch.max(initial=0)) + 1
        ratio = parts / max(len(problem.cluster.devices), 1)
        return abs(math.log2(ratio)), problem.graph.operator_count, k

    return sorted(range(len(problems)), key=off)


def _begun(index: int, name: str, problem: Problem, engine: str, *, starts: bool) -> _Known:
    """starts: whether to make the first few. Raises InfeasibleError where no placement can fit."""
    began = time.monotonic()
    if engine != "single":
        refuse_impossible(problem)
    alone = best_single(problem)
    found = _Known(index, name, problem, None if alone is None else alone[1])
    found.start_seconds = math.inf if alone is None else alone[1]
    # How `auto` would begin says how well a variant can be divided, whatever the engine.
    if engine != "single" and starts:
        seen = seen_by_search(problem)
        found.consider(of_merged(seen, few_solutions))
        if not math.isfinite(found.start_seconds) or problem.graph.micro_batch.max(initial=-1) < 1:
            found.consider(of_merged(seen, costed_starts))
    found.took_seconds = time.monotonic() - began
    return found
