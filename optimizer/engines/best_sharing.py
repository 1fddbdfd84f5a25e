"""Finds a placement under each sharing of the network, and takes the best of them.

A placement is good only for the sharing that it was found under, so each sharing has a search of
its own. What one search found may still help another: every placement is tried under the other
sharings too, and where it beats their own, their search goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placewire.optimizer.engines.bundling import seen_by_search
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import BrokenRuleError
from placewire.optimizer.engines.reporting import JoinedReports
from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.solution import TIE, Report, Solution
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.simulation.simulate import simulate

# The part of the time or moves for all searches from another sharing's placement.
_CROSSING_PART = 0.2
# The part for the bound of the best placement, which is proven once; none with a budget of moves.
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
    tell: Callable[[str], None] = lambda line: None,
    starts: Sequence[Solution] = (),
) -> tuple[Placement, tuple[Placement, ...]]:
    """(the best placement, one for each sharing in the given order). Steps that differ by less than
    TIE are equal, and the first sharing wins; the problem's own sharing is ignored.

    starts: solutions with which the search under each sharing may begin. The time limit, or the
    moves, are for all sharings together. A sharing without a placement
    within the memories is left out, and so is an answer that breaks a rule, of which `tell` gets a
    line. Raises ValueError where no sharing is given; where none has a placement, BrokenRuleError
    if an answer broke a rule, else InfeasibleError.
    """
    if not sharings:
        raise ValueError("name at least one sharing")
    run = _Searches(problem, engine, JoinedReports(progress), tell)
    searches = engine == "auto" and len(sharings) > 1
    crossing, proof = (_CROSSING_PART, _PROOF_PART) if searches else (0.0, 0.0)
    if searches:
        settings = replace(settings, certify=0.0)
    part = settings.part((1.0 - crossing - proof) / len(sharings))
    found: dict[SharingName, Placement] = {}
    failed: InfeasibleError | None = None
    for sharing in dict.fromkeys(sharings):
        try:
            placement = run.search(sharing, part, reduction, starts)
        except InfeasibleError as error:
            failed = error
            continue
        if placement is not None:
            found[sharing] = placement
    if not found and (cause := next(iter(run.broken), failed)) is not None:
        raise cause
    if crossing:
        part = settings.part(crossing / len(sharings))
        found = {sharing: _crossed(run, sharing, found, part) for sharing in found}
    every = tuple(found.values())
    least = min(placement.step_seconds for placement in every)
    best = next(p for p in every if p.step_seconds <= least * (1 + TIE))
    if searches and settings.moves is None:
        part = replace(settings.part(proof), certify=1.0)
        proven = _proven(run, best, part)
        every = tuple(proven if p is best else p for p in every)
        best = proven
    return best, every


@dataclass
class _Searches:
    """Searches of one problem under several sharings. broken: the answers that broke a rule."""

    problem: Problem
    engine: str
    report: JoinedReports
    tell: Callable[[str], None]
    broken: list[BrokenRuleError] = field(default_factory=list)

    def search(
        self,
        sharing: SharingName,
        settings: SolveSettings,
        reduction: str,
        starts: Sequence[Solution] = (),
    ) -> Placement | None:
        """None where the answer broke a rule, which is told: another search's answer may hold."""
        shared = replace(self.problem, sharing=sharing)
        try:
            return place(shared, self.engine, settings, reduction, self.report.next(), starts)
        except BrokenRuleError as error:
            self.tell(f"sharing {sharing}: {error}")
            self.broken.append(error)
            return None


def _proven(run: _Searches, best: Placement, settings: SolveSettings) -> Placement:
    """The same placement, or one as good, with the strongest bound that the time allows."""
    starts = [solution_of(run.problem, best)]
    proven = run.search(best.sharing, settings, "none", starts)
    if proven is None or proven.step_seconds > best.step_seconds * (1 + 1e-9):
        return best
    return proven


def _crossed(
    run: _Searches,
    sharing: SharingName,
    found: dict[SharingName, Placement],
    settings: SolveSettings,
) -> Placement:
    """The sharing's own placement, or a better one that was found from another sharing's."""
    own, shared = found[sharing], replace(run.problem, sharing=sharing)
    others = (placement for other, placement in found.items() if other != sharing)
    seen = seen_by_search(shared)
    tried = [score(seen, solution_of(run.problem, placement)) for placement in others]
    limit = own.step_seconds * (1 - _WORTH_IT)
    better = [one for one in tried if one.excess == 0.0 and one.step_seconds < limit]
    if not better:
        return own
    starts = [one.solution for one in sorted(better, key=lambda one: one.step_seconds)]
    grown = run.search(sharing, settings, "none", starts)
    return own if grown is None or grown.step_seconds >= own.step_seconds else grown


def solution_of(problem: Problem, placement: Placement) -> Solution:
    """The placement's devices, and priorities that lead to its orders, without its rates."""
    graph, cluster = problem.graph, problem.cluster
    number = {name: d for d, name in enumerate(cluster.device_names)}
    device = np.array([number[placement.operators[name]] for name in graph.ids], dtype=np.int64)
    order = [[graph.index_of[i] for i in placement.order[name]] for name in cluster.device_names]
    own = replace(problem, sharing=placement.sharing, model=placement.model)
    timeline = simulate(own, device, None, order, placement.rates)
    # Operators that start at the same time run in the order in which they are listed.
    listed = np.zeros(graph.operator_count)
    for row in order:
        listed[row] = np.arange(len(row))
    priority = np.empty(graph.operator_count)
    priority[np.lexsort((listed, timeline.start))] = -np.arange(graph.operator_count)
    return Solution(device, priority, None)
