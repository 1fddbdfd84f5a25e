"""Engine `dsc`: dominant sequence clustering.

Yang, Gerasoulis: "DSC: scheduling parallel tasks on an unbounded number of processors" (IEEE TPDS
5(9), 1994). Every operator begins in a cluster of its own. An operator is free once all its parents
are examined, and partially free once some are. The free operator with the longest path through it
is examined next. It is appended to the cluster of a parent where it starts earlier there than
alone. Parents are tried in the order in which their messages would arrive, the last first; a parent
that is alone in its cluster, and has no other child, may be moved in front of the operator. Where a
longer path leads through a partially free operator, the free one takes no cluster in which the
partially free one could start earlier (the dominant sequence reduction warranty). Clusters then go
to devices by guided load balancing, and run by list scheduling. An operator counts with its mean
time over unlike devices.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import mean_seconds, typical_transfer_seconds, upward_rank
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.guided_load_balancing import place_clusters
from placewire.optimizer.published.engines.shared.kinds import cluster_engine


@dataclass(frozen=True)
class Clusters:
    """cluster int64[n]: the first operator of each operator's cluster; start float64[n] seconds, as
    if every cluster had a device of its own."""

    cluster: IntArray
    start: FloatArray


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group finds no device with room, and OutOfTimeError."""
    found = dominant_sequence_clusters(problem, deadline("dsc", settings))
    return place_clusters(problem, "dsc", found.cluster, found.start)


def dominant_sequence_clusters(problem: Problem, until: Deadline) -> Clusters:
    """Raises OutOfTimeError."""
    return _Clustering(problem).run(until)


class _Clustering:
    """A cluster is named by its first operator. start [n] seconds is known for examined operators;
    arrival [n] is when the last message of an operator's examined parents would arrive."""

    def __init__(self, problem: Problem) -> None:
        graph, transfer = problem.graph, typical_transfer_seconds(problem)
        n = graph.operator_count
        self.own: list[float] = mean_seconds(problem).tolist()
        self.behind: list[float] = upward_rank(problem, transfer).tolist()
        self.parents: list[dict[int, float]] = [{} for _ in range(n)]
        self.children: list[dict[int, float]] = [{} for _ in range(n)]
        source, target, tensor = graph.edges
        for i, j, took in zip(
            source.tolist(), target.tolist(), transfer[tensor].tolist(), strict=True
        ):
            longest = max(took, self.parents[j].get(i, 0.0))
            self.parents[j][i] = self.children[i][j] = longest
        self.missing = [len(parents) for parents in self.parents]
        self.start, self.arrival = [0.0] * n, [0.0] * n
        self.cluster = [-1] * n
        self.members: dict[int, list[int]] = {}
        self.end: dict[int, float] = {}
        # (minus the longest path through the operator, operator)
        self.free = [(-self.behind[i], i) for i in range(n) if not self.missing[i]]
        self.partly_free: list[tuple[float, int]] = []
        heapq.heapify(self.free)

    def run(self, until: Deadline) -> Clusters:
        for k in range(len(self.own)):
            until.require("clustering", k)
            path, i = heapq.heappop(self.free)
            dominant = self._dominant()
            warranted = dominant[1] if dominant is not None and dominant[0] < path else -1
            self._examine(i, warranted)
        return Clusters(np.array(self.cluster, dtype=np.int64), np.array(self.start))

    def _dominant(self) -> tuple[float, int] | None:
        """(minus its path, the partly free operator with the longest path). Stale entries of the
        heap are dropped."""
        heap = self.partly_free
        while heap:
            path, i = heap[0]
            if self.missing[i] and -path == self.arrival[i] + self.behind[i]:
                return path, i
            heapq.heappop(heap)
        return None

    def _examine(self, i: int, dominant: int) -> None:
        start, home, moved = self._best(i)
        if home >= 0 and self._hinders(home, dominant):
            start, home, moved = self.arrival[i], -1, []
        for j, at in moved:
            del self.members[self.cluster[j]], self.end[self.cluster[j]]
            self._join(j, home, at)
        self._join(i, i if home < 0 else home, start)
        for j, took in self.children[i].items():
            self.missing[j] -= 1
            self.arrival[j] = max(self.arrival[j], self._ends(i) + took)
            heap = self.partly_free if self.missing[j] else self.free
            heapq.heappush(heap, (-(self.arrival[j] + self.behind[j]), j))

    def _best(self, i: int) -> tuple[float, int, list[tuple[int, float]]]:
        """(start, cluster, [(parent to be moved there, its start)]) where i starts first; cluster
        -1: alone. Only the cluster of the parent whose message arrives last can be better."""
        best: tuple[float, int, list[tuple[int, float]]] = self.arrival[i], -1, []
        parents = sorted(self.parents[i], key=lambda j: (-(self._ends(j) + self.parents[i][j]), j))
        if not parents:
            return best
        home = self.cluster[parents[0]]
        end, moved = self.end[home], list[tuple[int, float]]()
        for k, j in enumerate(parents):
            if self.cluster[j] != home:
                if len(self.members[self.cluster[j]]) > 1 or len(self.children[j]) > 1:
                    break
                at = max(end, self._arrival_at(j, home))
                moved.append((j, at))
                end = at + self.own[j]
            elsewhere = [q for q in parents[k + 1 :] if self.cluster[q] != home]
            late = self._ends(elsewhere[0]) + self.parents[i][elsewhere[0]] if elsewhere else 0.0
            if max(end, late) < best[0]:
                best = max(end, late), home, list(moved)
        return best

    def _arrival_at(self, i: int, home: int) -> float:
        """When the inputs of i would have arrived in cluster home."""
        arrivals = (
            self._ends(j) + (0.0 if self.cluster[j] == home else took)
            for j, took in self.parents[i].items()
        )
        return max(arrivals, default=0.0)

    def _hinders(self, home: int, dominant: int) -> bool:
        """Whether the dominant operator could start earlier at the end of cluster home."""
        if dominant < 0:
            return False
        parents = self.parents[dominant]
        examined = [j for j in parents if self.cluster[j] >= 0]
        last = max(examined, key=lambda j: self._ends(j) + parents[j])
        if self.cluster[last] != home:
            return False
        others = [self._ends(j) + parents[j] for j in examined if self.cluster[j] != home]
        return max([self.end[home], *others]) < self.arrival[dominant]

    def _ends(self, i: int) -> float:
        return self.start[i] + self.own[i]

    def _join(self, i: int, home: int, at: float) -> None:
        self.start[i], self.cluster[i] = at, home
        self.members.setdefault(home, []).append(i)
        self.end[home] = at + self.own[i]


ENGINE = cluster_engine(
    "dominant sequence clusters, balanced", solve, paper="Yang, Gerasoulis, DSC (TPDS 1994)",
    section="DSC",
)  # fmt: skip
