"""Which nodes merge: Algorithm 1 of the thesis, the fusion within groups of its Algorithm 2, and
the operators of one group."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.contraction import (
    Merging,
    may_merge,
    merge,
    merge_acyclic,
    root,
    settle,
    unit_of,
    unlink,
)

_NONE = -1
_SEVERAL = -2
# merge_alike tries to merge an operator into so many of the last nodes of its group.
_NODES_TRIED = 8


@compiled
def _only(
    home: IntArray,
    end: IntArray,
    first: IntArray,
    last: IntArray,
    following: IntArray,
    i: int,
) -> int:
    """The only neighbour of root i along these lists, or _NONE or _SEVERAL."""
    found = _NONE
    before = -1
    e = first[i]
    while e >= 0:
        j = root(home, end[e])
        after = following[e]
        if j in (i, found):
            unlink(first, last, following, i, before, after)
        else:
            if found != _NONE:
                return _SEVERAL
            found = j
            before = e
        e = after
    return found


@compiled
def _only_following(m: Merging, i: int) -> int:
    return _only(m.home, m.target, m.out_first, m.out_last, m.out_next, i)


@compiled
def _only_preceding(m: Merging, j: int) -> int:
    return _only(m.home, m.source, m.in_first, m.in_last, m.in_next, j)


@compiled
def fuses(out_degree_i: int, in_degree_j: int, p_i: float, p_j: float, alpha: float) -> bool:
    """Whether Algorithm 1 of the thesis merges an edge; a degree of 2 stands for 2 or more."""
    if out_degree_i >= 2 and in_degree_j >= 2:
        return False
    if out_degree_i == 1 and in_degree_j == 1:
        return True
    return (p_i <= alpha and out_degree_i == 1) or (p_j <= alpha and in_degree_j == 1)


@compiled
def _fuses_now(m: Merging, i: int, j: int, alpha: float) -> bool:
    out_degree = 2 if _only_following(m, i) == _SEVERAL else 1
    in_degree = 2 if _only_preceding(m, j) == _SEVERAL else 1
    heavy = m.delay[i] + m.delay[j] > m.most_seconds[0]
    if heavy and out_degree + in_degree > 2:
        return False
    return fuses(out_degree, in_degree, m.delay[i], m.delay[j], alpha) and may_merge(m, i, j)


@compiled
def _push(queue: IntArray, waits: BoolArray, state: IntArray, x: int) -> None:
    """Puts x at the end of a ring, unless it waits there. state: the ring's begin and length."""
    if not waits[x]:
        waits[x] = True
        queue[(state[0] + state[1]) % len(queue)] = x
        state[1] += 1


@compiled
def _push_common(
    m: Merging, queue: IntArray, waits: BoolArray, state: IntArray, i: int, j: int
) -> None:
    """Puts the common successors and predecessors of i and j into the ring: they are in the shorter
    of the two lists of each side."""
    e = m.out_first[i] if m.out_count[i] < m.out_count[j] else m.out_first[j]
    while e >= 0:
        _push(queue, waits, state, root(m.home, m.target[e]))
        e = m.out_next[e]
    e = m.in_first[i] if m.in_count[i] < m.in_count[j] else m.in_first[j]
    while e >= 0:
        _push(queue, waits, state, root(m.home, m.source[e]))
        e = m.in_next[e]


@compiled
def fuse(m: Merging, alpha: float, least: int) -> None:
    """Applies Algorithm 1 to every edge until none fuses or only `least` nodes are left.

    An edge fuses only if it is the single edge of one of its ends, so the queue holds nodes, not
    edges. A merge changes the degrees of common neighbours, which are queued again. Where one of
    the two degrees is 1, the edge is the only path between its ends: no cycle can arise, and the
    merged node may take the position of the other end.
    """
    queue = np.empty(len(m.home), dtype=np.int64)
    waits = np.zeros(len(m.home), dtype=np.bool_)
    state = np.zeros(2, dtype=np.int64)
    for p in range(len(m.at)):
        if m.at[p] >= 0:
            _push(queue, waits, state, m.at[p])
    while state[1] > 0 and m.nodes[0] > least:
        x = queue[state[0]]
        state[0] = (state[0] + 1) % len(queue)
        state[1] -= 1
        waits[x] = False
        if m.home[x] != x:
            continue
        i, j = _only_preceding(m, x), x
        if i < 0 or not _fuses_now(m, i, j, alpha):
            i, j = x, _only_following(m, x)
            if j < 0 or not _fuses_now(m, i, j, alpha):
                continue
        _push_common(m, queue, waits, state, i, j)
        position = m.position[j] if _only_following(m, i) == j else m.position[i]
        merge(m, i, j)
        settle(m, i, j, position)
        _push(queue, waits, state, i)


@compiled
def _follows_outside(m: Merging, i: int) -> bool:
    """Whether root i has a successor in another unit: not succ(i) ⊆ U."""
    e = m.out_first[i]
    while e >= 0:
        if unit_of(m, root(m.home, m.target[e])) != unit_of(m, i):
            return True
        e = m.out_next[e]
    return False


@compiled
def fuse_within(m: Merging, edges: IntArray, alpha: float) -> None:
    """Applies lines 9 to 27 of Algorithm 2 until no edge fuses.

    edges: numbers of edges, in the order in which they are examined. An edge (i, j) inside one unit
    fuses where all successors of i are in the unit or p_j < alpha, and no other path leads from i
    to j in the whole graph.
    """
    before = m.nodes[0] + 1
    while m.nodes[0] < before:
        before = m.nodes[0]
        for e in edges:
            i, j = root(m.home, m.source[e]), root(m.home, m.target[e])
            if i == j or unit_of(m, i) != unit_of(m, j):
                continue
            if m.delay[j] < alpha or not _follows_outside(m, i):
                merge_acyclic(m, i, j)


@compiled
def merge_alike(m: Merging, operators: IntArray, start: IntArray) -> None:
    """Merges the operators of each group operators[start[g]:start[g + 1]] in order: each into the
    first of the last few nodes of its group that it can join without a cycle."""
    kept = np.empty(_NODES_TRIED, dtype=np.int64)
    for g in range(len(start) - 1):
        count = 0
        for k in range(start[g], start[g + 1]):
            x = root(m.home, operators[k])
            joined = False
            for t in range(min(count, _NODES_TRIED)):
                other = root(m.home, kept[t])
                joined = joined or other == x or merge_acyclic(m, other, x)
            if not joined:
                kept[count % _NODES_TRIED] = x
                count += 1
