"""Engine `linear-clustering`: critical paths become clusters, one after the other.

Kim, Browne: "A general approach to mapping of parallel computation upon multiprocessor
architectures" (ICPP 1988), as Celeritas (section 2) describes it: the operators of the longest
path, transfers charged, become one cluster; they and their edges leave the graph; and so on. A
cluster is linear: no two of its operators could run at the same time. Clusters go to devices by
guided load balancing, and run by list scheduling. Unlike devices count with their mean.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.device_capacity import DeviceCapacities, within_memory
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import downward_rank, mean_seconds, typical_transfer_seconds
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.guided_load_balancing import balanced
from placewire.optimizer.published.kernels.linear_clusters import take_longest_paths
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path

# Paths that are taken between two looks at the clock.
_AT_ONCE = 64


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group finds no device with room, and OutOfTimeError."""
    cluster = linear_clusters(problem, deadline("linear-clustering", settings))
    start = downward_rank(problem, typical_transfer_seconds(problem))

    def attempt(capacities: DeviceCapacities) -> Solution | None:
        device = balanced(problem, capacities, cluster, start)
        if device is None:
            return None
        return Solution(device, by_remaining_path(problem, device), None)

    return within_memory(problem, "linear-clustering", attempt)


def linear_clusters(problem: Problem, until: Deadline) -> IntArray:
    """int64[n]: clusters numbered by how long their paths are, the longest first."""
    graph = problem.graph
    cluster = np.full(graph.operator_count, -1, dtype=np.int64)
    own, transfer = mean_seconds(problem), typical_transfer_seconds(problem)
    known = 0
    while (cluster < 0).any():
        until.require("linear clustering")
        known = take_longest_paths(
            graph.topological_order, *graph.outputs, graph.consumers_start, graph.consumers, own,
            transfer, cluster, known, _AT_ONCE,
        )  # fmt: skip
    return cluster


ENGINE = Engine(
    "critical paths as clusters, balanced",
    solve,
    paper="Kim, Browne (ICPP 1988)",
    section="LC",
    decides="devices",
    sees="each transfer alone",
    memory="static sum: a device without room is passed over",
    unlike="mean times",
    reduction="none",
)
