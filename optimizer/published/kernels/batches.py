"""Merges edges of a graph in batches that need no search for cycles; compiled.

A node's level is the number of edges on the longest path to it. Two nodes of neighbouring levels
can have no path between them other than their edge, so that merging them makes no cycle (Pesto's
criterion, for one edge). Every group of a batch has nodes of two neighbouring levels, and no edge
joins two groups of the same levels. All groups together make no cycle either: where the level of a
group is the lower of its two, no edge leads to a lower level, and within a level edges lead only
from unmerged nodes into groups.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.contraction import Merging, may_merge, merge, root

_NONE, _SEVERAL = -1, -2


@compiled
def _levels(m: Merging) -> IntArray:
    """The level of each root, int64[n]."""
    level = np.zeros(len(m.home), dtype=np.int64)
    for p in range(len(m.at)):
        x = m.at[p]
        e = m.in_first[x] if x >= 0 else -1
        while e >= 0:
            y = root(m.home, m.source[e])
            if y != x:
                level[x] = max(level[x], level[y] + 1)
            e = m.in_next[e]
    return level


@compiled
def _note(m: Merging, x: int, group: int, forward: bool, level: IntArray, beside: IntArray) -> None:
    """Notes that node x joins the group: in `beside`, the group stands beside the successors of x
    one level up (forward), or beside its predecessors one level down."""
    wanted = level[x] + 1 if forward else level[x] - 1
    e = m.out_first[x] if forward else m.in_first[x]
    while e >= 0:
        y = root(m.home, m.target[e] if forward else m.source[e])
        if level[y] == wanted and beside[y] != group:
            beside[y] = group if beside[y] == _NONE else _SEVERAL
        e = m.out_next[e] if forward else m.in_next[e]


@compiled
def _settle(m: Merging, size: IntArray, level: IntArray) -> None:
    """Sets the positions after a batch: by level, unmerged nodes before groups, else as before."""
    count = np.zeros(2 * level.max() + 3, dtype=np.int64)
    for x in m.at:
        if x >= 0 and m.home[x] == x:
            count[2 * level[x] + (size[x] > 1) + 1] += 1
    place = np.cumsum(count)
    before = m.at.copy()
    m.at[:] = -1
    for x in before:
        if x >= 0 and m.home[x] == x:
            slot = 2 * level[x] + (size[x] > 1)
            m.at[place[slot]] = x
            m.position[x] = place[slot]
            place[slot] += 1


@compiled
def merge_batch(m: Merging, edges: IntArray, most_nodes: int, least: int) -> int:
    """Merges one batch of edges, in the order given, into groups of at most most_nodes nodes, until
    `least` nodes are left. Returns the number of merges."""
    n = len(m.home)
    level, size = _levels(m), np.ones(n, dtype=np.int64)
    # For an unmerged node: the group that its edges lead into, and the group that leads to it. Only
    # groups count whose levels are its own and the next, or the one before and its own.
    into, out_of = np.full(n, _NONE), np.full(n, _NONE)
    before = m.nodes[0]
    for e in edges:
        if m.nodes[0] <= least:
            break
        i, j = root(m.home, m.source[e]), root(m.home, m.target[e])
        if i == j or size[i] + size[j] > most_nodes:
            continue
        if level[j] == level[i] + 1 and size[i] == size[j] == 1:
            free = into[i] == _NONE and out_of[j] == _NONE
        elif level[j] == level[i] + 1 and size[j] == 1:
            free = out_of[j] == i
        elif level[j] == level[i] and size[i] == 1:
            free = into[i] == j
        else:
            continue
        if not free or not may_merge(m, i, j):
            continue
        group, joins = (j, i) if size[j] > 1 else (i, j)
        if size[i] == 1:
            _note(m, i, group, True, level, out_of)
        if size[j] == 1:
            _note(m, j, group, False, level, into)
        merge(m, group, joins)
        size[group] += 1
    _settle(m, size, level)
    merged: int = before - m.nodes[0]
    return merged
