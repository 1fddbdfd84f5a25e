"""Rules on the variants that a placement was compared with, whose least bound is told to the user.

Their figures stand in the placement's file. Without their graphs they are held against each other;
with them, each bound is proven again. Only that of the placed variant can have needed a search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.bounds.memory_limits import refuse_impossible
from placewire.optimizer.check.recompute.claims import recompute_best_single
from placewire.optimizer.check.recompute.facts import GraphLists
from placewire.optimizer.check.rules.claims import single_device_mistake
from placewire.optimizer.check.rules.violation import Violation, within
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import WITHOUT_SHAPING, SharingName
from placewire.optimizer.placement import Placement, Variant
from placewire.optimizer.problem import InfeasibleError, Problem


def variant_violations(placement: Placement) -> Iterator[Violation]:
    """What the file alone can show."""
    variants = placement.variants
    if not variants:
        return
    for what in ("name", "structure_hash"):
        for value, times in Counter(getattr(one, what) for one in variants).items():
            if times > 1:
                yield Violation(f"{what} {value!r} is given to {times} variants", "variants")
    taken = [one for one in variants if one.structure_hash == placement.structure_hash]
    if not taken:
        yield Violation("none of them is the graph that is placed", "variants")
    for one in taken:
        yield from _differences(one, placement)
    for one in variants:
        yield from _impossible(one)


def _differences(taken: Variant, placement: Placement) -> Iterator[Violation]:
    """Where the variant that was taken does not say what the placement says."""
    said = {
        "operators": (taken.operators, len(placement.operators)),
        "step_seconds": (taken.step_seconds, placement.step_seconds),
        "bound_seconds": (taken.bound_seconds, placement.bound_seconds),
        "single_device_seconds": (taken.single_device_seconds, placement.single_device_seconds),
    }
    for what, (in_variant, of_placement) in said.items():
        if in_variant != of_placement:
            yield Violation(
                f"says {in_variant!r}, the placement of it {of_placement!r}", _where(taken, what)
            )


def _impossible(one: Variant) -> Iterator[Violation]:
    """A bound above a step that is known: all on one device is a placement, too."""
    bound = one.bound_seconds
    if not (math.isfinite(bound) and bound >= 0):
        yield Violation(f"says {bound!r}", _where(one, "bound_seconds"))
        return
    known = {"its step": one.step_seconds, "one device": one.single_device_seconds}
    for what, seconds in known.items():
        if seconds is not None and not within(bound, seconds):
            yield Violation(
                f"says {bound!r}, which is above {what} of {seconds!r}",
                _where(one, "bound_seconds"),
            )


def variant_graph_violations(
    placement: Placement, graphs: Sequence[OperatorGraph]
) -> Iterator[Violation]:
    """What the variants' graphs show beside. graphs: of all variants that were given to the search,
    with or without the one that was taken. Those that fit into no memory are not compared."""
    named = {one.structure_hash: one for one in placement.variants}
    given = {graph.structure_hash: graph for graph in graphs}
    for structure, graph in given.items():
        if structure not in named and _may_fit(graph, placement):
            yield Violation(f"the graph {structure[:12]}… is none of them", "variants")
    for structure, one in named.items():
        if structure == placement.structure_hash:
            continue
        if structure not in given:
            yield Violation(f"no graph was given that is {structure[:12]}…", _where(one))
            continue
        yield from _disproved(one, placement, given[structure])


def _disproved(one: Variant, placement: Placement, graph: OperatorGraph) -> Iterator[Violation]:
    if one.operators != graph.operator_count:
        yield Violation(
            f"says {one.operators}, its graph has {graph.operator_count}", _where(one, "operators")
        )
    alone = recompute_best_single(graph, GraphLists(graph), placement)
    if (what := single_device_mistake(one.single_device_seconds, alone)) is not None:
        yield Violation(what, _where(one, "single_device_seconds"))
    # `--sharing auto` chose the variant before the sharing: a bound may be one that holds under all
    # of them, and under none does the job carry more than without shaping.
    proven = 0.0
    for sharing in (placement.sharing, WITHOUT_SHAPING):
        try:
            proven = max(proven, lower_bound(_problem(graph, placement, sharing)).seconds)
        except InfeasibleError as error:
            yield Violation(str(error), _where(one))
            return
        if within(one.bound_seconds, proven):
            return
    yield Violation(
        f"says {one.bound_seconds!r}, only {proven!r} can be proven without a search",
        _where(one, "bound_seconds"),
    )


def _may_fit(graph: OperatorGraph, placement: Placement) -> bool:
    try:
        refuse_impossible(_problem(graph, placement, placement.sharing))
    except InfeasibleError:
        return False
    return True


def _problem(graph: OperatorGraph, placement: Placement, sharing: SharingName) -> Problem:
    how = placement.model, placement.backend, placement.floor
    return Problem(graph, placement.cluster, sharing, *how)


def _where(one: Variant, what: str = "") -> str:
    return f"variants.{one.name}.{what}".rstrip(".")
