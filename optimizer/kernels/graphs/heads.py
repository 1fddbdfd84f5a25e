"""Lower bounds: earliest starts that hold in every schedule, and Jackson's bound of one machine.

A graph here is a list of edges. Each has two delays between the end of its source and the start of
its target: `near` where both run on one device, and `far` >= near where they do not (inf where they
must run on one device).
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.graphs.contraction import root
from placewire.optimizer.kernels.heap import pop, push


@compiled
def one_machine(
    release: FloatArray, work: FloatArray, delivery: FloatArray, members: IntArray, count: int
) -> float:
    """The least max(end + delivery) of members[:count], which come by release, on one machine.

    Jackson's preemptive schedule attains it: of the members released, the one of longest delivery
    runs.
    """
    key, item = np.empty(count), np.empty(count, dtype=np.int64)
    left = np.empty(count)
    waiting, following = 0, 0
    now, latest = 0.0, 0.0
    for k in range(count):
        left[k] = work[members[k]]
    while following < count or waiting > 0:
        if waiting == 0:
            now = max(now, release[members[following]])
        while following < count and release[members[following]] <= now:
            waiting = push(key, item, 0, waiting, -delivery[members[following]], following)
            following += 1
        k = item[0]
        until = release[members[following]] if following < count else np.inf
        if now + left[k] <= until:
            now += left[k]
            latest = max(latest, now + delivery[members[k]])
            waiting = pop(key, item, 0, waiting)
        else:
            left[k] -= until - now
            now = until
    return latest


@compiled
def earliest_starts(
    order: IntArray,
    work: FloatArray,
    start: IntArray,
    source: IntArray,
    near: FloatArray,
    far: FloatArray,
    unit: IntArray,
    group: IntArray,
    clashes: BoolArray,
    known: FloatArray,
    limit: int,
) -> FloatArray:
    """float64[n]: seconds before which no schedule starts an operator, at least those that are
    known float64[n].

    order int64[n] is topological; the edges into v are start[v]:start[v + 1]; operators of one unit
    share a device, those of groups that clash do not: group int64[n], -1 for none, clashes bool[k,
    k]. At most `limit` ancestors of an operator are looked at.

    For an ancestor w of v, lag(w) is the longest path of work and near delays strictly between
    them. Where w is not on v's device, some edge of any path from w to v joins two devices, and the
    path takes at least apart(w) >= lag(w). So where w clashes with v, v starts no earlier than
    head(w) + work(w) + apart(w). If v starts at t, every w with head(w) + work(w) +
    apart(w) > t is therefore on v's device. These w run there one after the other, none before its
    head, and v follows each by its lag. So for every k, t is at least the k-th largest such sum or
    at least the one-machine bound of the k ancestors with the largest sums: t >= max over k of the
    smaller of the two. (Papadimitriou and Yannakakis 1990, "Towards an architecture-independent
    analysis of parallel algorithms", has unit work, one delay for all, and recomputation.)
    """
    n = len(order)
    head, position = np.zeros(n), np.empty(n, dtype=np.int64)
    lag, apart = np.zeros(n), np.zeros(n)
    for k in range(n):
        position[order[k]] = k
    mark = np.full(n, -1, dtype=np.int64)
    room = 0
    for v in range(n):
        room = max(room, start[v + 1] - start[v])
    queue_key, queue_item = np.empty(n + room), np.empty(n + room, dtype=np.int64)
    found, bound = np.empty(limit, dtype=np.int64), np.empty(limit)
    some = np.empty(limit, dtype=np.int64)
    for at in range(n):
        v = order[at]
        least = known[v]
        for k in range(start[v], start[v + 1]):
            u = source[k]
            least = max(least, head[u] + work[u] + near[k])
        queued, count = 0, 0
        w, through, away = v, 0.0, 0.0
        while True:
            for k in range(start[w], start[w + 1]):
                u = source[k]
                reach = near[k] + through
                alone = far[k] if w == v else min(far[k] + through, near[k] + away)
                if mark[u] != v:
                    if unit[u] == unit[v]:
                        alone = np.inf
                    if head[u] + work[u] + alone <= least:
                        continue
                    mark[u] = v
                    lag[u], apart[u] = reach, alone
                    queued = push(queue_key, queue_item, 0, queued, -float(position[u]), u)
                else:
                    lag[u] = max(lag[u], reach)
                    apart[u] = max(apart[u], alone)
            if queued == 0 or count == limit:
                break
            w = queue_item[0]
            queued = pop(queue_key, queue_item, 0, queued)
            through, away = work[w] + lag[w], work[w] + apart[w]
            reached = head[w] + work[w] + apart[w]
            if group[v] >= 0 and group[w] >= 0 and clashes[group[v], group[w]]:
                least = max(least, reached)
            k = count
            while k > 0 and bound[k - 1] < reached:
                found[k], bound[k] = found[k - 1], bound[k - 1]
                k -= 1
            found[k], bound[k] = w, reached
            count += 1
        if count > 0:
            low, high = 1, count
            while low <= high:
                k = (low + high) // 2
                # Insertion keeps the k members sorted by release.
                for a in range(k):
                    u = found[a]
                    b = a
                    while b > 0 and head[some[b - 1]] > head[u]:
                        some[b] = some[b - 1]
                        b -= 1
                    some[b] = u
                serial = one_machine(head, work, lag, some, k)
                reached = bound[k - 1]
                least = max(least, min(serial, reached))
                if serial >= reached:
                    high = k - 1
                else:
                    low = k + 1
        head[v] = least
    return head


@compiled
def longest_path(order: IntArray, work: FloatArray, start: IntArray, source: IntArray) -> float:
    """Seconds of the longest path of work, without delays."""
    finish = np.zeros(len(order))
    longest = 0.0
    for v in order:
        for k in range(start[v], start[v + 1]):
            finish[v] = max(finish[v], finish[source[k]])
        finish[v] += work[v]
        longest = max(longest, finish[v])
    return longest


@compiled
def unit_seconds(
    head: FloatArray, work: FloatArray, tail: FloatArray, members: IntArray, start: IntArray
) -> FloatArray:
    """float64[U]: the one-machine bound of each unit's members[start[u]:start[u + 1]], which are
    sorted by head."""
    seconds = np.zeros(len(start) - 1)
    for u in range(len(seconds)):
        count = start[u + 1] - start[u]
        some = np.empty(count, dtype=np.int64)
        for k in range(count):
            some[k] = members[start[u] + k]
        seconds[u] = one_machine(head, work, tail, some, count)
    return seconds


@compiled
def pair_seconds(
    head: FloatArray,
    work: FloatArray,
    tail: FloatArray,
    members: IntArray,
    start: IntArray,
    one: IntArray,
    other: IntArray,
) -> FloatArray:
    """float64[P]: the one-machine bound of the units one[p] and other[p] together."""
    seconds = np.zeros(len(one))
    for p in range(len(one)):
        a, a_end = start[one[p]], start[one[p] + 1]
        b, b_end = start[other[p]], start[other[p] + 1]
        count = a_end - a + b_end - b
        some = np.empty(count, dtype=np.int64)
        for k in range(count):
            if b == b_end or (a < a_end and head[members[a]] <= head[members[b]]):
                some[k] = members[a]
                a += 1
            else:
                some[k] = members[b]
                b += 1
        seconds[p] = one_machine(head, work, tail, some, count)
    return seconds


@compiled
def turn_seconds(
    head: FloatArray,
    work: FloatArray,
    tail: FloatArray,
    place: IntArray,
    members: IntArray,
    start: IntArray,
    one: IntArray,
    other: IntArray,
) -> FloatArray:
    """float64[P]: as pair_seconds, where a device runs its operators in the order of place
    int64[n]; so are the members of each unit sorted."""
    seconds = np.zeros(len(one))
    for p in range(len(one)):
        a, a_end = start[one[p]], start[one[p] + 1]
        b, b_end = start[other[p]], start[other[p] + 1]
        now = 0.0
        while a < a_end or b < b_end:
            if b == b_end or (a < a_end and place[members[a]] < place[members[b]]):
                v = members[a]
                a += 1
            else:
                v = members[b]
                b += 1
            now = max(now, head[v]) + work[v]
            seconds[p] = max(seconds[p], now + tail[v])
    return seconds


@compiled
def joined_units(unit: IntArray, one: IntArray, other: IntArray, units: int) -> IntArray:
    """int64[n]: units numbered anew from 0, those of operators one[k] and other[k] united."""
    home = np.arange(units)
    for k in range(len(one)):
        a, b = root(home, unit[one[k]]), root(home, unit[other[k]])
        home[max(a, b)] = min(a, b)
    number = np.full(units, -1, dtype=np.int64)
    count = 0
    joined = np.empty(len(unit), dtype=np.int64)
    for i in range(len(unit)):
        a = root(home, unit[i])
        if number[a] < 0:
            number[a] = count
            count += 1
        joined[i] = number[a]
    return joined
