"""Edges of a merging graph merged in batches that need no search for cycles, compiled.

A node's level is the number of edges on the longest path to it. Between nodes of neighbouring
levels no other path than their edge can be, so that merging the two makes no cycle (Pesto's
criterion, for one edge). A batch takes such pairs, each node once, and no two pairs of the same
levels with an edge between them. Then there is none for all of them together: with the lower level
of a pair as the pair's, no edge leads to a lower level, and within one level edges lead only from
unmerged nodes into pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizer.kernels.compiled import compiled
from optimizer.kernels.contraction import Merging, may_merge, merge, root

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@compiled
def _levels(m: Merging) -> IntArray:
    """int64[n], of roots."""
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
def _meets_pair(m: Merging, x: int, forward: bool, paired: BoolArray, level: IntArray) -> bool:
    """Whether a successor (else a predecessor) of root x is a pair whose lower level is x's (else
    the one below x's)."""
    lower = level[x] if forward else level[x] - 1
    e = m.out_first[x] if forward else m.in_first[x]
    while e >= 0:
        y = root(m.home, m.target[e] if forward else m.source[e])
        if paired[y] and level[y] == lower:
            return True
        e = m.out_next[e] if forward else m.in_next[e]
    return False


@compiled
def _settle(m: Merging, paired: BoolArray, level: IntArray) -> None:
    """Positions after a batch: by level, unmerged nodes before pairs, else as before."""
    count = np.zeros(2 * level.max() + 3, dtype=np.int64)
    for x in m.at:
        if x >= 0 and m.home[x] == x:
            count[2 * level[x] + paired[x] + 1] += 1
    place = np.cumsum(count)
    before = m.at.copy()
    m.at[:] = -1
    for x in before:
        if x >= 0 and m.home[x] == x:
            slot = 2 * level[x] + paired[x]
            m.at[place[slot]] = x
            m.position[x] = place[slot]
            place[slot] += 1


@compiled
def merge_batch(m: Merging, edges: IntArray, least: int) -> int:
    """One batch, edges (numbers) in the order given, until `least` nodes are left: the number of
    merges."""
    level = _levels(m)
    paired = np.zeros(len(m.home), dtype=np.bool_)
    # A node beside a pair of its levels stays beside it for the rest of the batch.
    no_tail, no_head = paired.copy(), paired.copy()
    before = m.nodes[0]
    for e in edges:
        if m.nodes[0] <= least:
            break
        i, j = root(m.home, m.source[e]), root(m.home, m.target[e])
        if paired[i] or paired[j] or no_tail[i] or no_head[j] or level[j] != level[i] + 1:
            continue
        if not may_merge(m, i, j):
            continue
        no_tail[i] = _meets_pair(m, i, True, paired, level)
        no_head[j] = _meets_pair(m, j, False, paired, level)
        if not no_tail[i] and not no_head[j]:
            merge(m, i, j)
            paired[i] = True
    _settle(m, paired, level)
    merged: int = before - m.nodes[0]
    return merged
