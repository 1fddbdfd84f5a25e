"""A placement found under one sharing, scored under another: its devices and urgencies stay, rates
are allocated anew."""

from __future__ import annotations

import numpy as np

from optimizer.engines.scoring import score
from optimizer.engines.solution import Solution
from optimizer.graph import OperatorGraph
from optimizer.names import Sharing
from optimizer.placement import Placement
from optimizer.problem import Problem
from optimizer.simulate import simulate


def step_under(graph: OperatorGraph, placement: Placement, sharing: Sharing) -> float:
    """Seconds: the better of its own order as it is and of list scheduling by its start times."""
    problem = Problem(graph, placement.cluster, sharing)
    index = {name: d for d, name in enumerate(placement.cluster.device_names)}
    device = np.array([index[placement.operators[name]] for name in graph.ids], dtype=np.int64)
    position = {name: k for names in placement.order.values() for k, name in enumerate(names)}
    own = Problem(graph, placement.cluster, placement.sharing)
    order = [
        [graph.index_of[name] for name in placement.order.get(d, ())]
        for d in placement.cluster.device_names
    ]
    timeline = simulate(own, device, order=order, rates=placement.rates)
    by_start = np.array([-timeline.start[i] - 1e-12 * position[n] for i, n in enumerate(graph.ids)])
    listed = score(problem, Solution(device, by_start, None))
    kept = simulate(problem, device, order=order, rates=listed.solution.rates)
    return min(listed.step_seconds, kept.step_seconds)
