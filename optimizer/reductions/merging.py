"""A graph whose nodes are merged one pair at a time, as reductions see it."""

from __future__ import annotations

import numpy as np

from optimizer.graph import IntArray
from optimizer.problem import Problem


class MergingGraph:
    """following, preceding: neighbours of each remaining node; `merge` folds one into another.

    Two nodes may merge where no device type becomes impossible, their co-location keys do not
    differ, and the result stays small beside a device when the whole graph does not fit into one.
    """

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        n = graph.operator_count
        source, target, _ = graph.edges
        self.following: list[set[int]] = [set() for _ in range(n)]
        self.preceding: list[set[int]] = [set() for _ in range(n)]
        for i, j in zip(source.tolist(), target.tolist(), strict=True):
            self.following[i].add(j)
            self.preceding[j].add(i)
        self.home = list(range(n))
        self.key = graph.colocation.tolist()
        self.possible = np.isfinite(problem.seconds)
        size = graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes
        self.bytes = size.tolist()
        largest = int(problem.cluster.memory_bytes.max())
        self.most_bytes = largest if sum(self.bytes) <= largest else largest // 8

    def may_merge(self, i: int, j: int) -> bool:
        if self.key[i] >= 0 and self.key[j] >= 0 and self.key[i] != self.key[j]:
            return False
        if self.bytes[i] + self.bytes[j] > self.most_bytes:
            return False
        return bool((self.possible[i] & self.possible[j]).any())

    def merge(self, i: int, j: int) -> None:
        """j into i."""
        for k in self.following[j]:
            self.preceding[k].discard(j)
            if k != i:
                self.preceding[k].add(i)
                self.following[i].add(k)
        for k in self.preceding[j]:
            self.following[k].discard(j)
            if k != i:
                self.following[k].add(i)
                self.preceding[i].add(k)
        self.following[i].discard(j)
        self.preceding[i].discard(j)
        self.following[j], self.preceding[j] = set(), set()
        self.home[j] = i
        self.key[i] = max(self.key[i], self.key[j])
        self.possible[i] &= self.possible[j]
        self.bytes[i] += self.bytes[j]

    def reaches(self, i: int, j: int, *, directly: bool) -> bool:
        """Whether a path leads from i to j; the edge i -> j itself counts only where `directly`."""
        waiting = [k for k in self.following[i] if directly or k != j]
        seen = set(waiting)
        while waiting:
            k = waiting.pop()
            if k == j:
                return True
            fresh = self.following[k] - seen
            seen |= fresh
            waiting.extend(fresh)
        return False

    def groups(self) -> IntArray:
        """int64[n]: the node that each operator ended in."""
        for i in range(len(self.home)):
            top = i
            while self.home[top] != top:
                top = self.home[top]
            self.home[i] = top
        return np.array(self.home, dtype=np.int64)
