"""One pass of coarsening: pairs of nodes become one where the graph stays acyclic and its critical
path hardly grows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.contraction import Merging, merge_acyclic, root


class Paths(NamedTuple):
    """The longest paths that end just before each root, or begin just behind it.

    longest float64[n]: seconds of the longest one; through int64[n]: the neighbour that it comes
    through; otherwise float64[n]: seconds of the longest one through any other neighbour.
    """

    longest: FloatArray
    through: IntArray
    otherwise: FloatArray


@compiled
def _extend(paths: Paths, x: int, y: int, seconds: float) -> None:
    """Takes account of a path of so many seconds that arrives at x through y."""
    if y == paths.through[x]:
        paths.longest[x] = max(paths.longest[x], seconds)
    elif seconds > paths.longest[x]:
        paths.otherwise[x] = paths.longest[x]
        paths.longest[x] = seconds
        paths.through[x] = y
    else:
        paths.otherwise[x] = max(paths.otherwise[x], seconds)


@compiled
def _paths(m: Merging, behind: bool) -> Paths:
    """The paths in front of each root, or those behind it."""
    first, following = (m.out_first, m.out_next) if behind else (m.in_first, m.in_next)
    end = m.target if behind else m.source
    n = len(m.at)
    paths = Paths(np.zeros(n), np.full(n, -1, dtype=np.int64), np.zeros(n))
    for p in range(n):
        x = m.at[n - 1 - p] if behind else m.at[p]
        e = first[x] if x >= 0 else -1
        while e >= 0:
            y = root(m.home, end[e])
            if y != x:
                _extend(paths, x, y, paths.longest[y] + m.delay[y])
            e = following[e]
    return paths


@compiled
def _without(paths: Paths, x: int, y: int) -> float:
    """Seconds of the longest path of x that does not go through y."""
    length: float = paths.otherwise[x] if paths.through[x] == y else paths.longest[x]
    return length


@compiled
def _try_pair(
    m: Merging,
    heads: Paths,
    tails: Paths,
    i: int,
    j: int,
    most_seconds: float,
    longest_path: float,
) -> bool:
    """Merges roots i and j unless the new node or the longest path through it would be too long."""
    both = m.delay[i] + m.delay[j]
    head = max(_without(heads, i, j), _without(heads, j, i))
    tail = max(_without(tails, i, j), _without(tails, j, i))
    if both > most_seconds or head + both + tail > longest_path:
        return False
    return merge_acyclic(m, i, j)


@compiled
def coarsen(
    m: Merging, edges: IntArray, most_seconds: float, longest_path: float, least: int
) -> None:
    """Makes one pass over the edges in the order given, then over pairs of successors of one node,
    then over pairs of predecessors of one node, until `least` nodes are left.

    The longest paths are found once, before the pass. They stay nearly right because each node
    merges at most once in it.
    """
    heads, tails = _paths(m, False), _paths(m, True)
    free = np.ones(len(m.home), dtype=np.bool_)
    for e in edges:
        i, j = root(m.home, m.source[e]), root(m.home, m.target[e])
        if m.nodes[0] <= least:
            return
        if (
            i != j
            and free[i]
            and free[j]
            and _try_pair(m, heads, tails, i, j, most_seconds, longest_path)
        ):
            free[i] = free[j] = False
    for side in range(2):
        first = m.out_first if side == 0 else m.in_first
        following = m.out_next if side == 0 else m.in_next
        end = m.target if side == 0 else m.source
        for p in range(len(m.at)):
            x = m.at[p]
            e = first[x] if x >= 0 else -1
            last = -1
            while e >= 0:
                if m.nodes[0] <= least:
                    return
                y = root(m.home, end[e])
                e = following[e]
                if y in (x, last) or not free[y]:
                    continue
                if last >= 0 and _try_pair(m, heads, tails, last, y, most_seconds, longest_path):
                    free[last] = free[y] = False
                    last = -1
                else:
                    last = y


@compiled
def critical_path(m: Merging) -> float:
    """Seconds of the longest path of delays."""
    heads = _paths(m, False)
    longest = 0.0
    for p in range(len(m.at)):
        if m.at[p] >= 0:
            longest = max(longest, heads.longest[m.at[p]] + m.delay[m.at[p]])
    return longest
