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

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled

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
def unlink(
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
def settle(m: Merging, i: int, j: int, position: int) -> None:
    """The merged node (root i) at the position of one of the two; the other is left empty."""
    m.at[m.position[i]] = -1
    m.at[m.position[j]] = -1
    m.at[position] = i
    m.position[i] = position


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
                unlink(first, last, following, x, before, e)
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
        settle(m, i, j, end if found == _FORWARD else begin)
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
