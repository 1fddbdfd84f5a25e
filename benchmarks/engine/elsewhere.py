"""Tries placements in other settings than the one in which they were found.

A search that ends by the clock may find the better placement of one setting in another one. So all
placements of a step are tried in all settings, as they are: with their devices, orders and bundles.
The best one of a setting is kept, under what decides it, so that a run can be taken up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.engine.measured import sources_digest
from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.assemble import assemble
from placewire.optimizer.engines.bundling import Bundled
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.explain.summary import step_of
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement, load_placement, save_placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import allocate, starting_rates
from placewire.optimizer.simulation.bundles import PlacedStep, bundles_of
from placewire.optimizer.simulation.simulate import recorded_priority, simulate
from placewire.optimizer.simulation.timeline import Timeline

Name = TypeVar("Name")
# A placement gets rates of its own where its step with rates by volume is at most so many times the
# best one known: the linear programs take long.
_NEAR = 1.05


class Setting(NamedTuple):
    """Where a placement is simulated. All settings have the same devices."""

    cluster: Cluster
    sharing: SharingName


@dataclass(frozen=True)
class _Tried:
    """placement: as it was found. problem, step: with its bundles as operators."""

    graph: OperatorGraph
    placement: Placement
    problem: Problem
    step: PlacedStep
    rates: FloatArray | None
    timeline: Timeline

    @property
    def key(self) -> tuple[bool, float]:
        """A placement within the memories comes before a faster one."""
        exceeds = bool((self.timeline.peak_memory_bytes > self.problem.cluster.memory_bytes).any())
        return exceeds, self.timeline.step_seconds


def best_of_all(
    graphs: Sequence[OperatorGraph],
    found: Mapping[Name, Placement],
    settings: Mapping[Name, Setting],
    folder: Path,
) -> dict[Name, Placement]:
    """For each setting, by name, the placement that was found in it, or that of another setting
    which is the shortest in it. graphs: of the placements. A placement from elsewhere has the bound
    that needs no search, and no variants. folder: keeps the best ones."""
    folder.mkdir(parents=True, exist_ok=True)
    of_structure = {graph.structure_hash: graph for graph in graphs}
    graph_of = {name: of_structure[one.structure_hash] for name, one in found.items()}
    steps = {name: step_of(graph_of[name], one) for name, one in found.items()}
    contents = {name: one.model_dump_json() for name, one in found.items()}
    sources = sources_digest() + Path(__file__).read_text()

    def best_in(name: Name, setting: Setting) -> Placement:
        best = found[name]
        for other in found:
            if other != name:
                limit = best.step_seconds
                tried = _tried(graph_of[other], found[other], steps[other], setting, limit)
                if tried.key < (False, limit):
                    best = _assembled(tried)
        return best

    best = {}
    for name, setting in settings.items():
        where = setting.cluster.model_dump_json(), setting.sharing
        parts = (sources, *where, contents[name], *contents.values())
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
        kept = folder / f"{key}.placement.json.gz"
        if not kept.exists():
            save_placement(best_in(name, setting), kept)
        best[name] = load_placement(kept)
    return best


def _tried(
    graph: OperatorGraph, placement: Placement, step: PlacedStep, setting: Setting, limit: float
) -> _Tried:
    """limit: the step to beat."""
    problem = Problem(
        step.graph, setting.cluster, setting.sharing, placement.model, placement.backend,
        placement.floor,
    )  # fmt: skip

    def under(rates: FloatArray | None) -> _Tried:
        timeline = simulate(problem, step.device, order=step.order, rates=rates)
        return _Tried(graph, placement, problem, step, rates, timeline)

    if not problem.decides_rates:
        return under(None)
    by_volume = starting_rates(problem, step.device)
    first = under(by_volume)
    if first.key >= (False, limit * _NEAR):
        return first
    better = under(allocate(problem, step.device, first.timeline.order, by_volume))
    return min(first, better, key=lambda one: one.key)


def _assembled(tried: _Tried) -> Placement:
    graph, found = tried.graph, tried.placement
    problem = replace(tried.problem, graph=graph)
    device = tried.step.device[: graph.operator_count]
    solution = Solution(device, recorded_priority(problem), tried.rates)
    bundles = tuple(bundles_of(graph, found))
    alone = best_single(problem)
    placement = assemble(
        problem,
        Bundled(solution, tried.problem, tried.step, tried.timeline, bundles),
        lower_bound(problem),
        single_device_seconds=None if alone is None else alone[1],
        engine=found.engine,
        reduction=found.reduction,
        seed=found.seed,
        wall_seconds=found.wall_seconds,
    )
    if mistakes := check(graph, placement):
        raise RuntimeError(f"a placement breaks a rule in another setting: {mistakes[0]}")
    return placement
