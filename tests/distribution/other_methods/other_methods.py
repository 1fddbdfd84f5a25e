"""An engine and a reduction as somebody else would write them: docs/how-to/add-a-method.md."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.reduction import Reduction
from placewire.optimizer.registry import Refusal


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """The first half of the recorded order on the first device, the rest on the second."""
    count = problem.graph.operator_count
    order = np.arange(count)
    return Solution((order >= count // 2).astype(np.int64), -order.astype(np.float64), None)


def two_devices(problem: Problem) -> Refusal | None:
    if len(problem.cluster.device_names) != 2:
        return Refusal("halves are for two devices; use another engine")
    return None


def pairs(problem: Problem) -> Reduced:
    """Cuts the topological order into pairs: groups of neighbours in it never make a cycle."""
    order = problem.graph.topological_order
    group = np.empty_like(order)
    group[order] = np.arange(len(order)) // 2
    return contract(problem, group)


def no_keys(problem: Problem) -> Refusal | None:
    if (problem.graph.colocation >= 0).any():
        return Refusal("pairs would part what is co-located; use another reduction")
    return None


HALVES = Engine("one half on each of two devices", solve, accepts=two_devices, reduction="none")
PAIRS = Reduction("neighbours in the topological order", pairs, accepts=no_keys)
