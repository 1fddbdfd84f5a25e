"""One pass of coarsening over a merging graph, compiled: pairs of nodes become one where that
leaves the graph acyclic and hardly lengthens its critical path."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.contraction import Merging, merge_acyclic, root


class Paths(NamedTuple):
    """Of each root the longest path in front of it, float64[n] seconds, the neighbour that it comes
    through, int64[n], and the longest one through any other neighbour."""

    longest: FloatArray
    through: IntArray
    otherwise: FloatArray


@compiled
def _extend(paths: Paths, x: int, y: int, seconds: float) -> None:
    """A path of that length arrives at x through y."""
    if y == paths.through[x]:
        paths.longest[x] = max(paths.longest[x], seconds)
    elif seconds > paths.longest[x]:
        paths.otherwise[x] = paths.longest[x]
        paths.longest[x] = seconds
        paths.through[x] = y
    else:
        paths.otherwise[x] = max(paths.otherwise[x], seconds)


@compiled
def _no_paths(n: int) -> Paths:
    return Paths(np.zeros(n), np.full(n, -1, dtype=np.int64), np.zeros(n))


@compiled
def _before(m: Merging) -> Paths:
    paths = _no_paths(len(m.home))
    for p in range(len(m.at)):
        x = m.at[p]
        e = m.in_first[x] if x >= 0 else -1
        while e >= 0:
            y = root(m.home, m.source[e])
            if y != x:
                _extend(paths, x, y, paths.longest[y] + m.delay[y])
            e = m.in_next[e]
    return paths


@compiled
def _after(m: Merging) -> Paths:
    paths = _no_paths(len(m.home))
    for p in range(len(m.at) - 1, -1, -1):
        x = m.at[p]
        e = m.out_first[x] if x >= 0 else -1
        while e >= 0:
            y = root(m.home, m.target[e])
            if y != x:
                _extend(paths, x, y, paths.longest[y] + m.delay[y])
            e = m.out_next[e]
    return paths


@compiled
def _without(paths: Paths, x: int, y: int) -> float:
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
    """Merges roots i and j unless the node or the longest path through it would be too long."""
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
    """One pass: the edges in the order given, then pairs of successors of one node and pairs of
    predecessors of one node, each node at most once, until `least` nodes are left.

    The paths are those from before the pass: that each node merges once keeps them nearly true.
    """
    heads, tails = _before(m), _after(m)
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
    heads = _before(m)
    longest = 0.0
    for p in range(len(m.at)):
        if m.at[p] >= 0:
            longest = max(longest, heads.longest[m.at[p]] + m.delay[m.at[p]])
    return longest
