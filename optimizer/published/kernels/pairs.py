"""Pairs of operators merged as they were chosen, and the cheapest node into a neighbour, compiled:
what published reductions need beside Algorithm 1."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.kernels import heap
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.contraction import Merging, may_merge, merge_acyclic, root

# Of the neighbours that a node may be merged with, this many are tried.
_TRIED = 8
_ALONE, _REFUSED = -1, -2


@compiled
def merge_pairs(m: Merging, first: IntArray, second: IntArray) -> None:
    """The nodes of operators first[k] and second[k], in turn, where they may and make no cycle."""
    for k in range(len(first)):
        i, j = root(m.home, first[k]), root(m.home, second[k])
        if i != j:
            merge_acyclic(m, i, j)


@compiled
def _nearest(m: Merging, i: int, forward: bool, beyond: int) -> int:
    """Of root i's successors behind position `beyond` the first that it may be merged with, or of
    its predecessors before it the last; _REFUSED where it may not with any, _ALONE without any."""
    found = _ALONE
    e = m.out_first[i] if forward else m.in_first[i]
    while e >= 0:
        y = root(m.home, m.target[e] if forward else m.source[e])
        e = m.out_next[e] if forward else m.in_next[e]
        if y == i:
            continue
        if found == _ALONE:
            found = _REFUSED
        if (m.position[y] > beyond) != forward or m.position[y] == beyond:
            continue
        nearer = found < 0 or (m.position[y] < m.position[found]) == forward
        if nearer and may_merge(m, i, y):
            found = y
    return found


@compiled
def _merge_with_neighbour(m: Merging, i: int) -> int:
    """Root i with a successor, or where it has none with a predecessor: the root of both, or a
    negative number where that may not be.

    No path leads from a node to the first of its successors in the kept order but their own edge,
    so that the first try makes no cycle unless one before it may not be merged with.
    """
    forward = _nearest(m, i, True, -1) != _ALONE
    beyond = -1 if forward else len(m.at)
    for _ in range(_TRIED):
        j = _nearest(m, i, forward, beyond)
        if j < 0:
            return j
        if merge_acyclic(m, i, j):
            return root(m.home, i)
        beyond = m.position[j]
    return _REFUSED


@compiled
def merge_cheapest(m: Merging, order: IntArray, least: int) -> None:
    """The node of least delay with a neighbour, again and again, until `least` nodes are left or
    none can be merged. order int64[n]: the recorded sort, by which ties are decided.

    A node that no neighbour takes is left until it has grown by another merge.
    """
    n = len(order)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    keys, items = np.empty(2 * n), np.empty(2 * n, dtype=np.int64)
    size = 0
    for i in range(n):
        if m.home[i] == i:
            size = heap.push(keys, items, 0, size, m.delay[i], place[i])
    while size > 0 and m.nodes[0] > least:
        delay, i = keys[0], order[items[0]]
        size = heap.pop(keys, items, 0, size)
        if m.home[i] != i or m.delay[i] != delay:
            continue
        i = _merge_with_neighbour(m, i)
        if i >= 0:
            size = heap.push(keys, items, 0, size, m.delay[i], place[i])
