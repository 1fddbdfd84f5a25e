"""Merges chosen pairs of operators, or the cheapest node with a neighbour; compiled. Published
reductions need this beside Algorithm 1."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.kernels import heap
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.contraction import Merging, may_merge, merge_acyclic, root

# How many of the neighbours that a node may be merged with are tried.
_TRIED = 8
_ALONE, _REFUSED = -1, -2


@compiled
def merge_pairs(m: Merging, first: IntArray, second: IntArray) -> None:
    """Merges the nodes of operators first[k] and second[k], in turn, where they may be merged and
    make no cycle."""
    for k in range(len(first)):
        i, j = root(m.home, first[k]), root(m.home, second[k])
        if i != j:
            merge_acyclic(m, i, j)


@compiled
def _nearest(m: Merging, i: int, forward: bool, beyond: int) -> int:
    """The first successor of root i behind position `beyond` that i may be merged with, or the last
    such predecessor before it; _REFUSED where none may be, _ALONE where i has none."""
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
    """Merges root i with a successor, or without any with a predecessor. Returns the root of both,
    or a negative number where nothing was merged.

    The edge from a node to its first successor in the kept order is the only path between them, so
    that the first try makes no cycle, unless it passed over a successor that may not be merged.
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
    """Merges the node of least delay with a neighbour, again and again, until `least` nodes are
    left or none can be merged. order int64[n]: the recorded sort, which decides ties.

    A node that can be merged with no neighbour is left until another merge has made it larger.
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
