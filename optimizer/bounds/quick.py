"""The bound that is cheap enough to be computed before every search and again by every check."""

from __future__ import annotations

from placewire.optimizer.bounds.bound import ROUNDING, Bound, largest
from placewire.optimizer.bounds.contradiction import contradiction_bound, limits_of
from placewire.optimizer.bounds.cuts import cut_bound
from placewire.optimizer.bounds.load import load_between, load_bound, share_of_load
from placewire.optimizer.bounds.paths import path_bound, unit_bound
from placewire.optimizer.bounds.relaxation import relax
from placewire.optimizer.problem import Problem


def lower_bound(problem: Problem) -> Bound:
    """Deterministic. Raises InfeasibleError where an operator can run on no device of the
    cluster."""
    if not problem.graph.operator_count:
        return Bound(0.0, "the graph is empty")
    relaxation = relax(problem)
    work = share_of_load(problem.seconds)
    found = [
        path_bound(relaxation),
        load_bound(work),
        unit_bound(problem, relaxation),
        load_between(relaxation, work),
    ]
    if relaxation.devices == 1:
        found.append(Bound(float(problem.seconds[:, 0].sum()), "one device runs everything"))
    if relaxation.devices > 1:
        limits = limits_of(problem, work)
        found.append(cut_bound(problem, relaxation, limits.held_bytes))
        found.append(contradiction_bound(relaxation, limits, largest(found).seconds))
    best = largest(found)
    return Bound(best.seconds * (1 - ROUNDING), best.reason)
