"""The papers' symbols for one problem: V, E, O, R, p, m, t, TP and the groups W.

The papers' graphs have one edge from an operator to another. Here several tensors may join the two,
as after a reduction: t_ij is then their sum, as it is in the rank of (4.1), and they are one
transfer. In Moirai's (7) and (8), too, a link is one data flow. The simulator sends each tensor by
itself. m_i is the static sum of weights, activations and workspace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.formulations.topological_sort import Sort, depth_first_sort
from placewire.optimizer.reductions.merging import distinct_edges, operator_bytes


@dataclass(frozen=True)
class Instance:
    problem: Problem
    sort: Sort = "recorded"

    @cached_property
    def order(self) -> IntArray:
        """TP int64[n]."""
        graph = self.problem.graph
        return depth_first_sort(graph) if self.sort == "depth-first" else graph.topological_order

    @property
    def operators(self) -> int:
        return self.problem.graph.operator_count

    @property
    def devices(self) -> int:
        return len(self.problem.cluster.devices)

    @cached_property
    def seconds(self) -> FloatArray:
        """p float64[n, D]; 0 where an operator cannot run."""
        return np.where(self.able, self.problem.seconds, 0.0)

    @cached_property
    def able(self) -> Any:
        """bool[n, D]: whether the device can run the operator."""
        return np.isfinite(self.problem.seconds)

    @cached_property
    def homogeneous(self) -> bool:
        """Whether every operator takes the same time on every device, as the papers assume."""
        seconds = self.problem.seconds
        return bool((seconds == seconds[:, :1]).all()) and bool(self.able.all())

    @cached_property
    def memory_bytes(self) -> IntArray:
        """m int64[n]"""
        return operator_bytes(self.problem.graph)

    @cached_property
    def edges(self) -> tuple[IntArray, IntArray, FloatArray]:
        """(i, j, t in bits) for each pair of operators that is joined."""
        i, j, size = distinct_edges(self.problem.graph)
        return i, j, size.astype(np.float64) * 8.0

    @cached_property
    def groups(self) -> list[IntArray]:
        """W: the groups of two or more operators that must share a device."""
        key = self.problem.graph.colocation
        found = [np.flatnonzero(key == k) for k in np.unique(key[key >= 0])]
        return [members for members in found if len(members) > 1]

    @cached_property
    def group_of(self) -> IntArray:
        """int64[n]: the index of an operator's group in `groups`, -1 without one."""
        group = np.full(self.operators, -1, dtype=np.int64)
        for g, members in enumerate(self.groups):
            group[members] = g
        return group

    @cached_property
    def sorted_costly(self) -> IntArray:
        """The operators with p > 0 on some device, in TP."""
        order = self.order
        costly = self.seconds.max(axis=1, initial=0.0) > 0
        found: IntArray = order[costly[order]]
        return found

    @property
    def holds_everything(self) -> Any:
        """bool[D]: whether the device can run, and hold, all operators."""
        memory = self.problem.cluster.memory_bytes
        return self.able.all(axis=0) & (self.memory_bytes.sum() <= memory)

    def admits(self, device: IntArray) -> bool:
        """Whether these devices, int64[n], can run their operators, hold them (3.2), and keep the
        groups together."""
        used = np.bincount(device, weights=self.memory_bytes, minlength=self.devices)
        return bool(
            (used <= self.problem.cluster.memory_bytes).all()
            and self.able[np.arange(self.operators), device].all()
            and all((device[group] == device[group[0]]).all() for group in self.groups)
        )

    @property
    def all_pair_count(self) -> int:
        k = len(self.sorted_costly)
        return k * (k - 1) // 2

    def all_pairs(self) -> tuple[IntArray, IntArray]:
        """O with p_i, p_j > 0: (i, j), where i is before j in TP."""
        first, second = np.triu_indices(len(self.sorted_costly), 1)
        return self.sorted_costly[first], self.sorted_costly[second]

    @cached_property
    def _reach(self) -> Any:
        """uint8[n, ceil(n / 8)]: bit j from the left of row i: whether a path leads from i to j."""
        graph = self.problem.graph
        reach = np.zeros((self.operators, (self.operators + 7) // 8), dtype=np.uint8)
        for i in graph.topological_order[::-1].tolist():
            for e in graph.output_tensors(i).tolist():
                for j in graph.tensor_consumers(e).tolist():
                    reach[i] |= reach[j]
                    reach[i, j // 8] |= np.uint8(128 >> (j % 8))
        return reach

    def reaches(self, i: Any, j: Any) -> Any:
        """Whether i and j are the same operator, or a path leads from i to j: bool, of int64 arrays
        of one shape, or of an array and a number."""
        bit = self._reach[i, np.asarray(j) // 8] >> (7 - np.asarray(j) % 8) & 1
        return (bit == 1) | (np.asarray(i) == np.asarray(j))

    @cached_property
    def parallel_pair_counts(self) -> tuple[int, int]:
        """The number of pairs in R: (pairs of one group, all others)."""
        inside, outside = 0, 0
        for i, later in self._parallel_rows():
            same = int(self._together(i, later).sum())
            inside, outside = inside + same, outside + len(later) - same
        return inside, outside

    def parallel_pairs(self) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
        """R, the pairs of O without a path between them: ((i, j) of one group, (i, j) others)."""
        inside: list[IntArray] = [np.empty((0, 2), dtype=np.int64)]
        outside: list[IntArray] = [np.empty((0, 2), dtype=np.int64)]
        for i, later in self._parallel_rows():
            pairs = np.stack([np.full_like(later, i), later], axis=1)
            together = self._together(i, later)
            inside.append(pairs[together])
            outside.append(pairs[~together])
        a, b = np.concatenate(inside), np.concatenate(outside)
        return (a[:, 0], a[:, 1]), (b[:, 0], b[:, 1])

    def _together(self, operator: int, others: IntArray) -> Any:
        group = self.group_of[operator]
        return (self.group_of[others] == group) & (group >= 0)

    def _parallel_rows(self) -> Any:
        """(i, the operators after it in TP that no path from i reaches), for each i of O."""
        for k, i in enumerate(self.sorted_costly.tolist()):
            later = self.sorted_costly[k + 1 :]
            reached = np.unpackbits(self._reach[i], count=self.operators).astype(bool)
            yield i, later[~reached[later]]
