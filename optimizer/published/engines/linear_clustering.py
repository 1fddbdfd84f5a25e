"""Engine `linear-clustering`: makes critical paths into clusters, one after the other.

Kim, Browne: "A general approach to mapping of parallel computation upon multiprocessor
architectures" (ICPP 1988), as Celeritas (section 2) describes it: the operators of the longest
path, transfers included, become one cluster and leave the graph with their edges; this repeats
until no operator is left. A cluster is linear: no two of its operators could run at the same time.
Clusters go to devices by guided load balancing, and run by list scheduling. An operator counts with
its mean time over unlike devices.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import downward_rank, mean_seconds, typical_transfer_seconds
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.guided_load_balancing import place_clusters
from placewire.optimizer.published.engines.shared.kinds import cluster_engine
from placewire.optimizer.published.kernels.linear_clusters import take_longest_paths

# Paths that are taken between two checks of the time limit.
_AT_ONCE = 64


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group finds no device with room, and OutOfTimeError."""
    cluster = linear_clusters(problem, deadline("linear-clustering", settings))
    start = downward_rank(problem, typical_transfer_seconds(problem))
    return place_clusters(problem, "linear-clustering", cluster, start)


def linear_clusters(problem: Problem, until: Deadline) -> IntArray:
    """int64[n]: the cluster of each operator, numbered from the longest path on."""
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


ENGINE = cluster_engine(
    "critical paths as clusters, balanced", solve, paper="Kim, Browne (ICPP 1988)", section="LC"
)
