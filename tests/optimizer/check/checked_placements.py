"""A problem and placements of it that pass the check."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.engines.assemble import assemble
from placewire.optimizer.engines.bundling import unbundled
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import starting_rates
from tests.optimizer.cases import cluster, graph


def placement_of(problem, device, priority=None, *, scale=1.0) -> Placement:
    device = np.array(device, dtype=np.int64)
    n = problem.graph.operator_count
    priority = -np.arange(n, dtype=float) if priority is None else priority
    rates = starting_rates(problem, device) * scale if problem.decides_rates else None
    alone = best_single(problem)
    return assemble(
        problem,
        unbundled(problem, Solution(device, priority, rates)),
        lower_bound(problem),
        single_device_seconds=None if alone is None else alone[1],
        engine="test",
        reduction="none",
        seed=0,
        wall_seconds={},
    )


PROBLEM = Problem(
    graph(
        {"A": 1.0, "B": 1.0, "C": 1.0, "D": 1.0},
        [("A", ["C", "D"], 400_000), ("B", ["D"], 1_000), ("C", ["D"], 0)],
        activation_bytes={"A": 400_000, "B": 1_000},
        weight_bytes={"C": 7},
        colocation={"C": "k", "D": "k"},
    ),
    cluster(3, (8e6, 16e6), latency=0.001),
)
