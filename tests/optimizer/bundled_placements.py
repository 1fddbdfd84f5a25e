"""Placements in which tensors travel together where nobody waits longer for it."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.assemble import assemble
from placewire.optimizer.engines.bundling import bundled
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import starting_rates
from tests.optimizer.cases import cluster, graph

MS = 1e-3


def placed(problem: Problem, device, priority=None) -> Placement:
    device = np.array(device, dtype=np.int64)
    count = problem.graph.operator_count
    priority = -np.arange(count, dtype=float) if priority is None else priority
    rates = starting_rates(problem, device) if problem.decides_rates else None
    alone = best_single(problem)
    return assemble(
        problem, bundled(problem, Solution(device, priority, rates)), lower_bound(problem),
        single_device_seconds=None if alone is None else alone[1], engine="test",
        reduction="none", seed=0, wall_seconds={},
    )  # fmt: skip


def two_servers(memory: int = 10**12) -> Cluster:
    """A message takes 10 us of each of its devices."""
    return cluster(2, memory=memory).model_copy(update={"message_seconds": 1e-5})


def two_small(late: float = 1.0, size: int = 100) -> Problem:
    """A and B (1 ms each) on the first server make what R and S on the second one read; S comes
    after R, which takes 20 ms where `late` is 1."""
    work = graph(
        {"A": MS, "B": MS, "W": 20 * MS * late, "R": MS, "S": MS},
        [("A", ["R"], size), ("B", ["S"], size), ("W", ["R"], 0)],
    )
    return Problem(work, two_servers(), "job")


ON = [0, 0, 1, 1, 1]
