"""Merges the nodes of an acyclic graph two at a time, and keeps the graph acyclic.

A node is named by the one operator that it grew from (its root). Its edges are two linked lists of
the graph's edges. A scan that meets an edge inside a node, or a double one, unlinks it, so that it
costs time once. `position` is a topological order, which every merge repairs in the interval
between the two nodes (after Pearce and Kelly, "A dynamic topological sort algorithm", 2006); so a
path between two nodes is searched in their interval only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled

_PATH, _FORWARD, _BACKWARD = 0, 1, 2
# The search for a path scans so many edges before it turns to the other end for the first time.
_FIRST_STEP = 8


class Merging(NamedTuple):
    """A graph of n operators, E edges (distinct pairs), u units and k device types.

    home int64[n]: union-find parents. source, target int64[E]. out_*, in_*: the lists of edges by
    their source, and by their target: per root the first edge, the last one and their number; per
    edge the next one. position int64[n] of each root; at int64[n]: the root at each position, or
    -1. delay float64[n] seconds and possible bool[n, k] of each root.

    A unit is what must share a device: a co-location group, or one node. unit int64[n]: the unit of
    each operator; unit_home int64[u]: union-find parents of units; keyed bool[u]: whether the unit
    is a group; unit_bytes int64[u], unit_seconds float64[u], unit_possible bool[u, k].

    mark, scratch, other int64[n]: working space. clock int64[2]: how many searches there were, and
    how many roots the last one found. nodes int64[1]: how many nodes remain. most_bytes: no unit
    grows beyond it. join_keys: whether a merge may join two groups. most_seconds float64[1]: no
    group grows beyond it, nor does a node that Algorithm 1 makes, unless it is a chain.
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
    """The root of i in a union-find forest; halves the path to it."""
    while home[i] != i:
        home[i] = home[home[i]]
        i = home[i]
    return i


@compiled
def unlink(
    first: IntArray, last: IntArray, following: IntArray, i: int, before: int, after: int
) -> None:
    """Takes the edge between edges `before` and `after` (-1: none) out of i's list."""
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
    """Whether i and j as one node could run on some device type, and its unit is within limits."""
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
    """Moves j's list to the end of i's."""
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
    """Merges root j into root i; the caller settles their positions."""
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
    """Puts the merged node (root i) at the position of one of the two; the other becomes empty."""
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
    """Continues one search over about `budget` more edges; returns whether it met the other one.

    Roots that it reaches between near and far get the mark of near and join `queue`; the edge from
    near to far does not count. state: how many roots of the queue are done, how many are in it, and
    how many edges were scanned.
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
    """Searches a path from root i to root j, i before j, other than the edge between them.

    The search runs from both ends in turns, in steps that grow with the work done. Returns _PATH,
    or _FORWARD or _BACKWARD where the search from i, or from j, has no roots left. Between the two,
    the roots that i reaches then have the mark 2 * clock[0] (_FORWARD), or those that reach j have
    the mark 2 * clock[0] + 1 (_BACKWARD); clock[1] is their number.
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
    """Repairs the positions after root j was merged into root i.

    found: what _path_elsewhere returned. The roots that need not follow the merged node come first,
    then the node, then the others, each in their former order.
    """
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
        # Roots that i reaches must follow the node. Roots that reach j must not; where only those
        # are known, all others follow.
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
    """Merges two roots, adjacent or not, unless a path over other nodes joins them."""
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
