"""Scores a placement under another cost model than it was found under: devices and order stay,
rates are allocated anew."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.explain.summary import indices_of, timeline_of
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import Model, SharingName
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate


def step_under(
    graph: OperatorGraph, placement: Placement, model: Model, sharing: SharingName
) -> tuple[float, bool]:
    """(seconds, whether all memories hold it): the better of the placement's own order and of list
    scheduling by its start times."""
    problem = Problem(graph, placement.cluster, sharing, model)
    device, order = indices_of(graph, placement)
    _, timeline = timeline_of(graph, placement)
    position = np.empty(graph.operator_count)
    for operators in order:
        position[operators] = np.arange(len(operators))
    by_start = -timeline.start[: len(position)] - 1e-12 * position
    listed = score(problem, Solution(device, by_start, None))
    kept = simulate(problem, device, order=order, rates=listed.solution.rates)
    kept_exceeds = bool((kept.peak_memory_bytes > problem.cluster.memory_bytes).any())
    exceeds, seconds = min(
        (listed.excess > 0.0, listed.step_seconds), (kept_exceeds, kept.step_seconds)
    )
    return float(seconds), not exceeds
