"""The quick bound, cheap enough to compute before every search and again in every check."""

from __future__ import annotations

import time
from typing import NamedTuple

from placewire.optimizer.bounds.bound import ROUNDING, Bound
from placewire.optimizer.bounds.contradiction import contradiction_bound, limits_of
from placewire.optimizer.bounds.cuts import cut_bound
from placewire.optimizer.bounds.load import all_alike, load_between, share_of_load
from placewire.optimizer.bounds.paths import path_bound, unit_bound
from placewire.optimizer.bounds.relaxation import relax
from placewire.optimizer.bounds.turns import with_turns
from placewire.optimizer.bounds.waiting import waiting_bound
from placewire.optimizer.problem import Problem

_KEPT = "_lower_bounds"


class Proven(NamedTuple):
    """seconds: how long the proof took on this machine."""

    bound: Bound
    seconds: float


def lower_bound(problem: Problem) -> Bound:
    """Deterministic. Raises InfeasibleError where an operator can run on no device."""
    return proven(problem).bound


def proven(problem: Problem) -> Proven:
    """The lower bound. Kept with the graph for each cluster and model: a search needs it, and so
    does the check of what it found."""
    known: dict[tuple[object, ...], Proven] = problem.graph.__dict__.setdefault(_KEPT, {})
    cluster = problem.cluster.model_dump_json()
    asked = cluster, problem.sharing, problem.model, problem.backend, problem.floor
    if asked not in known:
        began = time.monotonic()
        bound = _lower_bound(problem)
        known[asked] = Proven(bound, time.monotonic() - began)
    return known[asked]


def _lower_bound(problem: Problem) -> Bound:
    if not problem.graph.operator_count:
        return Bound(0.0, "the graph is empty")
    relaxation = relax(problem)
    # A search ends at the bound: with a budget of moves, the answers for other graphs are to remain
    # the same.
    if problem.model == "thesis" and problem.graph.notes.get("decompose"):
        relaxation = with_turns(relaxation)
    work = share_of_load(problem.seconds)
    found = [
        path_bound(relaxation),
        Bound(float(work.sum()), "total work over all devices"),
        unit_bound(problem, relaxation),
        load_between(relaxation, work),
    ]
    if relaxation.devices == 1:
        found.append(Bound(float(problem.seconds[:, 0].sum()), "one device runs everything"))
    else:
        limits = limits_of(problem, work)
        found.append(cut_bound(problem, relaxation, limits.held_bytes))
        if all_alike(problem.seconds):
            found.append(waiting_bound(relaxation))
        proven = max(bound.seconds for bound in found)
        found.append(contradiction_bound(relaxation, limits, proven))
    best = max(found, key=lambda bound: bound.seconds)
    return Bound(best.seconds * (1 - ROUNDING), best.reason)
