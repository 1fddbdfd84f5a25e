"""Operators tied to one device, without being made one operator.

Operators of one key that the graph already has (tied weights, resources, a parameter and its
update) start out tied, so that a group that meets one of them joins it. No tie makes two such keys
one: every parameter hangs on the forward path, and all their updates would end on one device (the
thesis, 4.3, combines no groups for the same reason). No group grows beyond what fits
(merging.most_unit_bytes), and none of operators that can run on no common device is made.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.merging import (
    binding_keys,
    most_unit_bytes,
    operator_bytes,
    units_of,
)


class Groups:
    """Operators tied to one device, a union-find; the graph's keys are tied from the start."""

    def __init__(self, problem: Problem, colocation: IntArray | None = None) -> None:
        keys = binding_keys(problem.graph.colocation if colocation is None else colocation)
        unit = units_of(keys)
        count = int(unit.max(initial=-1)) + 1
        size = np.zeros(count, dtype=np.int64)
        np.add.at(size, unit, operator_bytes(problem.graph))
        able = np.ones((count, problem.seconds.shape[1]), dtype=np.bool_)
        np.logical_and.at(able, unit, np.isfinite(problem.seconds))
        self._unit = unit.tolist()
        self._above = list(range(count))
        self._bytes = size.tolist()
        self._able = able
        self._keyed = np.zeros(count, dtype=np.bool_)
        self._keyed[unit[keys >= 0]] = True
        self._most_bytes = most_unit_bytes(problem)

    def top(self, i: int) -> int:
        unit = self._unit[i]
        above = self._above
        while above[unit] != unit:
            above[unit] = above[above[unit]]
            unit = above[unit]
        return int(unit)

    def join(self, i: int, j: int) -> bool:
        """Whether operators i and j are in one group now."""
        a, b = self.top(i), self.top(j)
        if a == b:
            return True
        together = self._bytes[a] + self._bytes[b]
        fits = together <= self._most_bytes and bool((self._able[a] & self._able[b]).any())
        if not fits or (self._keyed[a] and self._keyed[b]):
            return False
        self._above[b] = a
        self._bytes[a] = together
        self._able[a] &= self._able[b]
        self._keyed[a] |= self._keyed[b]
        return True

    def keys(self) -> IntArray:
        """int64[n]: one number per group of two operators or more, -1 for the others."""
        tops = np.array([self.top(i) for i in range(len(self._unit))], dtype=np.int64)
        _, group, count = np.unique(tops, return_inverse=True, return_counts=True)
        grouped = count > 1
        number = np.where(grouped, np.cumsum(grouped) - 1, -1)
        keys: IntArray = number[group.reshape(len(tops))]
        return keys
