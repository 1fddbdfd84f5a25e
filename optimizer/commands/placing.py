"""Places a step, or the best of its variants, under one sharing or the best; tells progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from placewire.optimizer.commands.outcome import say
from placewire.optimizer.commands.progress import ProgressLines
from placewire.optimizer.names import SharingName

if TYPE_CHECKING:
    from placewire.optimizer.engines.solution import Solution
    from placewire.optimizer.placement import Placement
    from placewire.optimizer.problem import Problem, SolveSettings

# What is cut best under this sharing is taken to be so under the others.
_SHARING_OF_THE_CHOICE: SharingName = "job"


def place_best(
    names: Sequence[str],
    problems: Sequence[Problem],
    engine: str,
    sharing: SharingName | Literal["auto"],
    settings: SolveSettings,
    reduction: str = "auto",
) -> tuple[int, Placement, tuple[Placement, ...]]:
    """(which of the problems was taken, its placement, one for each sharing that was tried). names,
    problems: variants of one step, at least one. Raises what `place` raises."""
    from placewire.optimizer.engines.reporting import JoinedReports

    own = _SHARING_OF_THE_CHOICE if sharing == "auto" else sharing
    problems = [replace(problem, sharing=own) for problem in problems]
    reports, taken, noted = JoinedReports(ProgressLines()), 0, _unchanged
    starts: tuple[Solution, ...] = ()
    if len(problems) > 1:
        from placewire.optimizer.engines.best_variant import best_variant

        choice = best_variant(names, problems, engine, settings, reduction, reports.next(), say)
        taken, starts, settings, noted = choice.taken, choice.starts, choice.left, choice.noted
    how = engine, settings, reduction, reports.next()
    if sharing == "auto":
        from placewire.optimizer.engines.best_sharing import place_under_best_sharing

        placement, considered = place_under_best_sharing(
            problems[taken], get_args(SharingName), *how, tell=say, starts=starts
        )
    else:
        from placewire.optimizer.engines.place import place

        placement = place(problems[taken], *how, starts=starts)
        considered = (placement,)
    return taken, noted(placement), tuple(map(noted, considered))


def _unchanged(placement: Placement) -> Placement:
    return placement
