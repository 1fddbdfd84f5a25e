"""Engines by name, and the one way from a problem to a checked placement of the user's graph."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from optimizer.bounds import lower_bound
from optimizer.check import check
from optimizer.engines import auto, heft, single
from optimizer.engines.annealing import score
from optimizer.engines.assemble import assemble
from optimizer.engines.formulations import engine as formulation
from optimizer.engines.single import best_single
from optimizer.engines.solution import Report, Solution, Solve
from optimizer.memory_limits import refuse_impossible
from optimizer.names import EngineName, ReductionName
from optimizer.placement import Placement
from optimizer.problem import InfeasibleError, Problem, SolveSettings
from optimizer.reductions.chain import reduce_by_name

ENGINES: dict[EngineName, Solve] = {
    "auto": auto.solve,
    "heft": heft.solve,
    "single": single.solve,
    "icc-p1": partial(formulation.solve, "icc-p1"),
    "icc-p2": partial(formulation.solve, "icc-p2"),
    "thesis-p1": partial(formulation.solve, "thesis-p1"),
    "thesis-p2": partial(formulation.solve, "thesis-p2"),
    "thesis-p3": partial(formulation.solve, "thesis-p3"),
}
# What `auto` means for them: the papers solve these on the graph as it is.
_NATURAL_REDUCTION: dict[EngineName, ReductionName] = {
    "single": "none",
    "icc-p1": "none",
    "thesis-p1": "none",
    "thesis-p2": "none",
}

# Of the time or moves that a reduced problem is given; the rest refines on the graph as given.
_REDUCED_PART = 0.5


def place(
    problem: Problem,
    engine: EngineName,
    settings: SolveSettings,
    reduction: ReductionName = "auto",
    progress: Report | None = None,
) -> Placement:
    """Reduce, solve, expand, refine (auto), allocate rates, check.

    Raises InfeasibleError where no placement within the memories was found, ValueError for an
    unknown engine or reduction. An engine's answer that breaks a rule is our mistake, and an
    AssertionError.
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; accepted: {', '.join(sorted(ENGINES))}")
    clock = _Clock()
    bound = lower_bound(problem)
    if engine != "single":
        refuse_impossible(problem)
    alone = best_single(problem)
    clock.stage("bound")
    if reduction == "auto" or engine == "single":
        reduction = _NATURAL_REDUCTION.get(engine, "auto")
    small, undo, words = reduce_by_name(problem, reduction)
    clock.stage("reduce")
    reduced = small.graph.operator_count < problem.graph.operator_count
    found = _solve_reduced(small, engine, settings, progress, reduced)
    clock.stage("solve")
    solutions = []
    if found is not None:
        device, priority = undo(found.device, found.priority)
        solutions.append(Solution(device, priority, found.rates))
    if engine == "auto" and reduced:
        starts = solutions or auto.starting_solutions(problem)
        solutions = [auto.improve(problem, _part(settings), progress, starts)]
        clock.stage("refine")
    best = score(problem, solutions[0])
    if best.excess > 0.0:
        raise InfeasibleError(
            f"{engine} found a placement that exceeds a device's memory by {best.excess:.1%}; "
            "engine auto searches within the memories"
        )
    clock.stage("rates")
    placement = assemble(
        problem, best.solution, bound,
        single_device_seconds=None if alone is None else alone[1],
        engine=engine, reduction=words, seed=settings.seed, wall_seconds=clock.stages,
    )  # fmt: skip
    violations = check(problem.graph, placement)
    clock.stage("check")
    if violations:
        raise AssertionError(f"engine {engine} broke a rule: {violations[0]}")
    return placement.model_copy(update={"wall_seconds": dict(clock.stages)})


def _solve_reduced(
    small: Problem,
    engine: EngineName,
    settings: SolveSettings,
    progress: Report | None,
    reduced: bool,
) -> Solution | None:
    """None where auto finds nothing on a reduced graph, whose memory is counted too high."""
    if not (engine == "auto" and reduced):
        return ENGINES[engine](small, settings, progress)
    try:
        return auto.solve(small, _part(settings), progress)
    except InfeasibleError:
        return None


def _part(settings: SolveSettings) -> SolveSettings:
    moves = None if settings.moves is None else max(1, int(settings.moves * _REDUCED_PART))
    limit = settings.time_limit_seconds * _REDUCED_PART
    return replace(settings, moves=moves, time_limit_seconds=limit)


class _Clock:
    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = time.monotonic()

    def stage(self, name: str) -> None:
        """What passed since the last call belongs to `name`."""
        now = time.monotonic()
        self.stages[name] = round(now - self._last, 4)
        self._last = now
