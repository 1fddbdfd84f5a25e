"""A placement for each way that the network may be shared, and the best of them.

A placement is only good for the sharing that it was found under, so each sharing is searched under
itself. What one search found may still lead another somewhere better: every placement is tried
under the other sharings too, and where it beats their own, searched on from there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.solution import TIE, Progress, Report, Solution
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.simulation.simulate import simulate

# Of the time or moves, what searches from another sharing's placement may take together.
_CROSSING_PART = 0.2
# And what the bound of the best may take, where no budget of moves is given: proven once.
_PROOF_PART = 0.2
# Another sharing's placement is worth a search where it is better by this part.
_WORTH_IT = 1e-3


def place_under_best_sharing(
    problem: Problem,
    sharings: Sequence[SharingName],
    engine: str,
    settings: SolveSettings,
    reduction: str = "auto",
    progress: Report | None = None,
) -> tuple[Placement, tuple[Placement, ...]]:
    """(the best, one of each sharing in the given order). Steps that differ by less than TIE are
    equal, and the first sharing wins; the problem's own sharing is ignored.

    The time limit, or the moves, are for all of them together. Raises ValueError where no sharing
    is given, InfeasibleError where none has a placement within the memories; a sharing without one
    is left out.
    """
    if not sharings:
        raise ValueError("name at least one sharing")
    report = _Offset(progress)
    searches = engine == "auto" and len(sharings) > 1
    crossing, proof = (_CROSSING_PART, _PROOF_PART) if searches else (0.0, 0.0)
    if searches:
        settings = replace(settings, certify=0.0)
    part = _part(settings, (1.0 - crossing - proof) / len(sharings))
    found: dict[SharingName, Placement] = {}
    failed: InfeasibleError | None = None
    for sharing in dict.fromkeys(sharings):
        try:
            shared = replace(problem, sharing=sharing)
            found[sharing] = place(shared, engine, part, reduction, report.next())
        except InfeasibleError as error:
            failed = error
    if not found:
        assert failed is not None
        raise failed
    if crossing:
        part = _part(settings, crossing / len(sharings))
        found = {sharing: _crossed(problem, sharing, found, part, report) for sharing in found}
    every = tuple(found.values())
    least = min(placement.step_seconds for placement in every)
    best = next(p for p in every if p.step_seconds <= least * (1 + TIE))
    if searches and settings.moves is None:
        part = replace(_part(settings, proof), certify=1.0)
        proven = _proven(problem, best, part, report)
        every = tuple(proven if p is best else p for p in every)
        best = proven
    return best, every


def _proven(
    problem: Problem, best: Placement, settings: SolveSettings, report: _Offset
) -> Placement:
    """The same placement, or one as good, with the strongest bound that the time allows."""
    shared = replace(problem, sharing=best.sharing)
    starts = [solution_of(problem, best)]
    proven = place(shared, "auto", settings, "none", report.next(), starts)
    return proven if proven.step_seconds <= best.step_seconds * (1 + 1e-9) else best


def _part(settings: SolveSettings, part: float) -> SolveSettings:
    moves = None if settings.moves is None else max(1, int(settings.moves * part))
    limit = settings.time_limit_seconds * part
    return replace(settings, moves=moves, time_limit_seconds=limit)


def _crossed(
    problem: Problem,
    sharing: SharingName,
    found: dict[SharingName, Placement],
    settings: SolveSettings,
    report: _Offset,
) -> Placement:
    """The sharing's own placement, or what grew from another's where that is better."""
    own, shared = found[sharing], replace(problem, sharing=sharing)
    better = []
    for other, placement in found.items():
        if other == sharing:
            continue
        tried = score(shared, solution_of(problem, placement))
        if tried.excess == 0.0 and tried.step_seconds < own.step_seconds * (1 - _WORTH_IT):
            better.append((tried.step_seconds, tried.solution))
    if not better:
        return own
    starts = [solution for _, solution in sorted(better, key=lambda row: row[0])]
    grown = place(shared, "auto", settings, "none", report.next(), starts)
    return grown if grown.step_seconds < own.step_seconds else own


def solution_of(problem: Problem, placement: Placement) -> Solution:
    """Devices and priorities that lead to the placement's orders, without its rates: for the
    problem's graph under any sharing."""
    graph, cluster = problem.graph, problem.cluster
    number = {name: d for d, name in enumerate(cluster.device_names)}
    device: IntArray = np.array(
        [number[placement.operators[name]] for name in graph.ids], dtype=np.int64
    )
    order = [[graph.index_of[i] for i in placement.order[name]] for name in cluster.device_names]
    own = replace(problem, sharing=placement.sharing, model=placement.model)
    timeline = simulate(own, device, None, order, placement.rates)
    # Operators that start together run as they are listed.
    listed = np.zeros(graph.operator_count)
    for row in order:
        listed[row] = np.arange(len(row))
    priority = np.empty(graph.operator_count)
    priority[np.lexsort((listed, timeline.start))] = -np.arange(graph.operator_count)
    return Solution(device, priority, None)


class _Offset:
    """Reports of one search after the other: time and moves go on, the incumbent never rises."""

    def __init__(self, progress: Report | None) -> None:
        self._progress, self._began = progress, time.monotonic()
        self._incumbent, self._moves, self._earlier = float("inf"), 0, 0

    def next(self) -> Report | None:
        self._earlier += self._moves
        self._moves = 0
        return None if self._progress is None else self._say

    def _say(self, progress: Progress) -> None:
        assert self._progress is not None
        self._moves = progress.moves
        self._incumbent = min(self._incumbent, progress.incumbent_seconds)
        bound = min(progress.bound_seconds, self._incumbent)
        elapsed = time.monotonic() - self._began
        self._progress(Progress(elapsed, self._incumbent, bound, self._earlier + progress.moves))
