"""Which sharing of the network to deploy: a placement found under each, the best predicted taken.

A placement is only good for the sharing that it was found under, so each has a search of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from optimizer.engines.registry import place
from optimizer.engines.solution import Report
from optimizer.names import EngineName, ReductionName, Sharing
from optimizer.placement import Placement
from optimizer.problem import InfeasibleError, Problem, SolveSettings


def place_under_best_sharing(
    problem: Problem,
    sharings: Sequence[Sharing],
    engine: EngineName,
    settings: SolveSettings,
    reduction: ReductionName = "auto",
    progress: Report | None = None,
) -> tuple[Placement, tuple[Placement, ...]]:
    """(the placement of the shortest step, the placements of all sharings that allow one).

    The time limit and the moves are for all of them: each sharing gets an equal part of what is
    left, so that what an early one does not need goes to the later. Of equal steps the sharing
    named first wins. The problem's own sharing does not matter. Raises InfeasibleError where no
    sharing allows a placement, ValueError where none is named.
    """
    if not sharings:
        raise ValueError("no sharing is named; give at least one to choose from")
    until = time.monotonic() + settings.time_limit_seconds
    found: list[Placement] = []
    refused: list[InfeasibleError] = []
    for k, sharing in enumerate(sharings):
        rest = len(sharings) - k
        part = replace(
            settings,
            time_limit_seconds=max(until - time.monotonic(), 0.0) / rest,
            moves=None if settings.moves is None else max(1, settings.moves // len(sharings)),
        )
        try:
            found.append(
                place(replace(problem, sharing=sharing), engine, part, reduction, progress)
            )
        except InfeasibleError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found, key=lambda placement: placement.step_seconds), tuple(found)
