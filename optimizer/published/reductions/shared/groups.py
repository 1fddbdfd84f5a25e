"""Groups of operators that are tied to one device and stay separate operators.

Operators that share a key of the graph (tied weights, resources, a parameter and its update) are
tied from the start, so that a group that is tied to one of them has all of them. No tie unites two
keys of the graph: every parameter hangs on the forward path, and all their updates would end on one
device (the thesis, 4.3, combines no groups for the same reason). No group grows beyond what fits
(merging.most_unit_bytes), and the operators of a group can all run on some common device.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.merging import (
    binding_keys,
    distinct_edges,
    most_unit_bytes,
    operator_bytes,
    recorded_position,
    units_of,
)


def root(above: list[int], i: int) -> int:
    """The root of i in a union-find, whose paths are halved on the way."""
    while above[i] != i:
        above[i] = above[above[i]]
        i = above[i]
    return i


def tied(problem: Problem, edges: BoolArray) -> IntArray:
    """int64[n]: keys of the groups that edges bool[distinct edges] tie; -1 outside any. The edge of
    most bytes ties first: a later one may be left out, which may cost its transfer."""
    source, target, size = distinct_edges(problem.graph)
    ties = np.flatnonzero(edges)
    ties = ties[np.lexsort((recorded_position(problem.graph)[source[ties]], -size[ties]))]
    groups = Groups(problem)
    for i, j in zip(source[ties].tolist(), target[ties].tolist(), strict=True):
        groups.join(i, j)
    return groups.keys()


class Groups:
    """A union-find of operators. colocation int64[n] replaces the graph's keys if given."""

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
        return root(self._above, self._unit[i])

    def join(self, i: int, j: int) -> bool:
        """Ties operators i and j where that is allowed; True where they are in one group now."""
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
