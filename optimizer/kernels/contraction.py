"""Merging the nodes of an acyclic graph two at a time, compiled.

A node is named by the one operator that it grew from (its root). Its edges are two linked lists of
the graph's edges; edges inside a node and doubled ones are unlinked when a scan meets them, so that
each costs once. `position` is a topological order that every merge repairs within the interval
between the two nodes (after Pearce and Kelly, "A dynamic topological sort algorithm", 2006), so
that a path is looked for in that interval only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.kernels.compiled import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_NONE = -1
_SEVERAL = -2
# Of a co-location group that no merge makes one, this many nodes are tried before a further one.
_NODES_TRIED = 8
_PATH, _FORWARD, _BACKWARD = 0, 1, 2
# Edges that the search for a path scans before it turns to the other end for the first time.
_FIRST_STEP = 8


class Merging(NamedTuple):
    """n operators, E edges (distinct pairs), u units, k device types.

    home int64[n]: union-find parents. source, target int64[E]. out_*, in_*: lists of edges by their
    source and by their target: first and last edge and their number per root, next edge per edge.
    position int64[n] of each root, at int64[n] the root at each position or -1. delay float64[n]
    seconds, possible bool[n, k], of each root.

    unit int64[n]: what must share a device (a co-location group or one node); unit_home int64[u]
    is the union-find of units; keyed bool[u]: it is a group; unit_bytes int64[u], unit_seconds
    float64[u], unit_possible bool[u, k].

    mark, scratch, other int64[n]: working space. clock int64[2]: how many searches there were, and
    how much the last one found; nodes int64[1]: how many remain. most_bytes: no unit grows beyond
    it; join_keys: whether a merge may make two groups one; most_seconds float64[1]: no group grows
    beyond it, and of the nodes that Algorithm 1 makes only chains do.
    """

    home: IntArray
    source: IntArray
    target: IntArray
    out_first: IntArray
    out_last: IntArray
    out_count: IntArray
    out_next: IntArray
    in_first: IntArray
    in_last: IntArray
    in_count: IntArray
    in_next: IntArray
    position: IntArray
    at: IntArray
    delay: FloatArray
    possible: BoolArray
    unit: IntArray
    unit_home: IntArray
    keyed: BoolArray
    unit_bytes: IntArray
    unit_seconds: FloatArray
    unit_possible: BoolArray
    mark: IntArray
    scratch: IntArray
    other: IntArray
    clock: IntArray
    nodes: IntArray
    most_bytes: int
    join_keys: bool
    most_seconds: FloatArray


@compiled
def root(home: IntArray, i: int) -> int:
    while home[i] != i:
        home[i] = home[home[i]]
        i = home[i]
    return i


@compiled
def _unlink(
    first: IntArray, last: IntArray, following: IntArray, i: int, before: int, after: int
) -> None:
    """Takes what stands between edges `before` and `after` (-1: none) out of i's list."""
    if before < 0:
        first[i] = after
    else:
        following[before] = after
    if after < 0:
        last[i] = before


@compiled
def _only(
    home: IntArray,
    end: IntArray,
    first: IntArray,
    last: IntArray,
    following: IntArray,
    i: int,
) -> int:
    """The one neighbour of root i along these lists, else _NONE or _SEVERAL."""
    found = _NONE
    before = -1
    e = first[i]
    while e >= 0:
        j = root(home, end[e])
        after = following[e]
        if j in (i, found):
            _unlink(first, last, following, i, before, after)
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
def unit_of(m: Merging, i: int) -> int:
    return root(m.unit_home, m.unit[i])


@compiled
def may_merge(m: Merging, i: int, j: int) -> bool:
    """Whether one node of both could run somewhere, and its unit has room."""
    able = False
    for k in range(m.possible.shape[1]):
        able = able or (m.possible[i, k] and m.possible[j, k])
    a, b = unit_of(m, i), unit_of(m, j)
    if a == b:
        return able
    if m.keyed[a] and m.keyed[b] and not m.join_keys:
        return False
    if (m.keyed[a] or m.keyed[b]) and m.unit_seconds[a] + m.unit_seconds[b] > m.most_seconds[0]:
        return False
    if m.unit_bytes[a] + m.unit_bytes[b] > m.most_bytes:
        return False
    able = False
    for k in range(m.possible.shape[1]):
        able = able or (m.unit_possible[a, k] and m.unit_possible[b, k])
    return able


@compiled
def _append(first: IntArray, last: IntArray, following: IntArray, i: int, j: int) -> None:
    """j's list to the end of i's."""
    if first[j] < 0:
        return
    if first[i] < 0:
        first[i] = first[j]
    else:
        following[last[i]] = first[j]
    last[i] = last[j]
    first[j] = -1
    last[j] = -1


@compiled
def merge(m: Merging, i: int, j: int) -> None:
    """Root j into root i; positions are the caller's."""
    m.home[j] = i
    _append(m.out_first, m.out_last, m.out_next, i, j)
    _append(m.in_first, m.in_last, m.in_next, i, j)
    m.out_count[i] += m.out_count[j]
    m.in_count[i] += m.in_count[j]
    m.delay[i] += m.delay[j]
    a, b = unit_of(m, i), unit_of(m, j)
    if a != b:
        m.unit_home[b] = a
        m.keyed[a] = m.keyed[a] or m.keyed[b]
        m.unit_bytes[a] += m.unit_bytes[b]
        m.unit_seconds[a] += m.unit_seconds[b]
        for k in range(m.possible.shape[1]):
            m.unit_possible[a, k] = m.unit_possible[a, k] and m.unit_possible[b, k]
    for k in range(m.possible.shape[1]):
        m.possible[i, k] = m.possible[i, k] and m.possible[j, k]
    m.nodes[0] -= 1


@compiled
def _settle(m: Merging, i: int, j: int, position: int) -> None:
    """The merged node (root i) at the position of one of the two; the other is left empty."""
    m.at[m.position[i]] = -1
    m.at[m.position[j]] = -1
    m.at[position] = i
    m.position[i] = position


@compiled
def fuses(out_degree_i: int, in_degree_j: int, p_i: float, p_j: float, alpha: float) -> bool:
    """Algorithm 1 of the thesis, line by line; a degree of 2 stands for 2 or more."""
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
    """To the end of a ring; state: where it begins, and how many wait. Each waits once."""
    if not waits[x]:
        waits[x] = True
        queue[(state[0] + state[1]) % len(queue)] = x
        state[1] += 1


@compiled
def _push_common(
    m: Merging, queue: IntArray, waits: BoolArray, state: IntArray, i: int, j: int
) -> None:
    """Whatever neighbours both i and j on the same side is in the shorter of their two lists."""
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
    """Algorithm 1 on every edge until none fuses or only `least` nodes are left.

    An edge can fuse only as the single edge of one of its ends, so nodes wait, not edges. A merge
    changes degrees of what neighbours both of the two, which waits again. With one of the two
    degrees 1 the edge is the only path between them, so no cycle can arise, and the merged node
    may stand where the other one stood.
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
        _settle(m, i, j, position)
        _push(queue, waits, state, i)


@compiled
def _expand(
    m: Merging,
    first: IntArray,
    last: IntArray,
    following: IntArray,
    end: IntArray,
    queue: IntArray,
    state: IntArray,
    near: int,
    far: int,
    budget: int,
) -> bool:
    """One search goes on over about `budget` more edges; whether it met the other one.

    What is between roots near and far joins `queue` with the mark of near; the edge from near to
    far is left out. state: how many of the queue are done, how many are in it, edges scanned.
    """
    low = min(m.position[near], m.position[far])
    high = max(m.position[near], m.position[far])
    mark = m.mark[near]
    limit = state[2] + budget
    while state[0] < state[1] and state[2] <= limit:
        x = queue[state[0]]
        state[0] += 1
        state[2] += 1
        before, e = -1, first[x]
        while e >= 0:
            state[2] += 1
            y = root(m.home, end[e])
            here, e = e, following[e]
            if y == x:
                _unlink(first, last, following, x, before, e)
                continue
            before = here
            if x == near and y == far:
                continue
            if m.mark[y] == mark ^ 1:
                return True
            if m.mark[y] != mark and low < m.position[y] < high:
                m.mark[y] = mark
                queue[state[1]] = y
                state[1] += 1
    return False


@compiled
def _path_elsewhere(m: Merging, i: int, j: int) -> int:
    """Whether a path other than the edge leads from root i to root j, i before j.

    Searched from both ends in turns, in steps that grow with the work done. _PATH, or the end whose
    search ran dry: then twice the clock marks all between them that i reaches (_FORWARD), or that
    plus 1 marks all that reaches j (_BACKWARD), clock[1] of them.
    """
    m.clock[0] += 1
    m.mark[i] = 2 * m.clock[0]
    m.mark[j] = 2 * m.clock[0] + 1
    m.scratch[0] = i
    m.other[0] = j
    down, up = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    down[1] = up[1] = 1
    while True:
        budget = _FIRST_STEP + up[2] - down[2]
        if _expand(m, m.out_first, m.out_last, m.out_next, m.target, m.scratch, down, i, j, budget):
            return _PATH
        if down[0] == down[1]:
            m.clock[1] = down[1] - 1
            return _FORWARD
        budget = _FIRST_STEP + 2 * down[2] - up[2]
        if _expand(m, m.in_first, m.in_last, m.in_next, m.source, m.other, up, j, i, budget):
            return _PATH
        if up[0] == up[1]:
            m.clock[1] = up[1] - 1
            return _BACKWARD


@compiled
def _settle_between(m: Merging, i: int, j: int, found: int) -> None:
    """Positions after root j was merged into root i with this answer of _path_elsewhere: first
    what need not follow the merged node, then it, then the rest, each in the former order."""
    forward, backward = 2 * m.clock[0], 2 * m.clock[0] + 1
    begin, end = m.position[i], m.position[j]
    if m.clock[1] == 0:
        _settle(m, i, j, end if found == _FORWARD else begin)
        return
    write, later = begin, 0
    for p in range(begin + 1, end):
        x = m.at[p]
        if x < 0:
            continue
        # What i reaches must follow; what reaches j must not, and the other search knows only that.
        if (m.mark[x] == forward) if found == _FORWARD else (m.mark[x] != backward):
            m.scratch[later] = x
            later += 1
        else:
            m.at[write] = x
            m.position[x] = write
            write += 1
    m.at[write] = i
    m.position[i] = write
    for k in range(later):
        m.at[write + 1 + k] = m.scratch[k]
        m.position[m.scratch[k]] = write + 1 + k
    for p in range(write + 1 + later, end + 1):
        m.at[p] = -1


@compiled
def merge_acyclic(m: Merging, i: int, j: int) -> bool:
    """Merges two roots, adjacent or not, unless a path leaves one and returns to the other."""
    if m.position[i] > m.position[j]:
        i, j = j, i
    if not may_merge(m, i, j):
        return False
    found = _path_elsewhere(m, i, j)
    if found == _PATH:
        return False
    merge(m, i, j)
    _settle_between(m, i, j, found)
    return True


@compiled
def _follows_outside(m: Merging, i: int) -> bool:
    """Whether root i has a successor of another unit: not succ(i) ⊆ U."""
    e = m.out_first[i]
    while e >= 0:
        if unit_of(m, root(m.home, m.target[e])) != unit_of(m, i):
            return True
        e = m.out_next[e]
    return False


@compiled
def fuse_within(m: Merging, edges: IntArray, alpha: float) -> None:
    """Algorithm 2, lines 9 to 27, until no edge fuses: of `edges` (numbers, in the order in which
    they are examined) those inside one unit fuse where all successors of i are in the unit or
    p_j < alpha, and no other path leads from i to j in the whole graph."""
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
    """Of each group operators[start[g]:start[g + 1]], in order, each one into the first of the last
    few nodes of that group that it can join without a cycle."""
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
