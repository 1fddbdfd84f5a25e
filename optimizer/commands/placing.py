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
    from placewire.optimizer.placement import Placement, Variant
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
    starts: Sequence[Solution] = (),
) -> tuple[int, Placement, tuple[Placement, ...]]:
    """(which of the problems was taken, its placement, one for each sharing that was tried). names,
    problems: variants of one step, at least one. starts: of the only one, with which `auto` may
    begin. Raises what `place` raises; BrokenRuleError also where what is told of the variants
    cannot be true."""
    from placewire.optimizer.check.rules.variants import variant_violations
    from placewire.optimizer.engines.refusals import BrokenRuleError
    from placewire.optimizer.engines.reporting import JoinedReports

    own = _SHARING_OF_THE_CHOICE if sharing == "auto" else sharing
    problems = [replace(problem, sharing=own) for problem in problems]
    reports, taken = JoinedReports(ProgressLines()), 0
    variants: tuple[Variant, ...] = ()
    if len(problems) > 1:
        from placewire.optimizer.engines.best_variant import best_variant

        choice = best_variant(names, problems, engine, settings, reduction, reports.next(), say)
        taken, starts, settings = choice.taken, choice.starts, choice.left
        variants = choice.variants
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
    noted = tuple(_with_variants(one, variants, problems) for one in considered)
    placement = _with_variants(placement, variants, problems)
    for violation in variant_violations(placement):
        raise BrokenRuleError(f"the comparison of variants broke a rule: {violation}; report this")
    return taken, placement, noted


def _with_variants(
    placement: Placement, variants: Sequence[Variant], problems: Sequence[Problem]
) -> Placement:
    """The placement with the variants. Their bounds hold under the sharing under which they were
    compared. Where the placement's own sharing lets the job carry more, each bound is lowered to
    that of the variant's work, which holds under every sharing."""
    from placewire.optimizer.bounds.bound import ROUNDING
    from placewire.optimizer.bounds.load import share_of_load

    chosen_under = problems[0]
    placed_under = replace(chosen_under, sharing=placement.sharing)
    before, now = (
        one.policy.most_nic_rates(one.cluster, one.floor) for one in (chosen_under, placed_under)
    )
    if not (now > before).any():
        return placement.with_variants(variants)
    work = {
        one.graph.structure_hash: float(share_of_load(one.seconds).sum()) * (1 - ROUNDING)
        for one in problems
    }
    lowered = [
        one.model_copy(update={"bound_seconds": min(one.bound_seconds, work[one.structure_hash])})
        for one in variants
    ]
    return placement.with_variants(lowered)
