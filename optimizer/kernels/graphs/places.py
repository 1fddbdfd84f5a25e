"""Earliest starts on each of several devices: bounds for a schedule in which some operators are
known to be on one of a few of them."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def only_place(may: BoolArray, u: int) -> int:
    """The device that unit u is certainly on, -1 where it may be on several, or on none."""
    found = -1
    for d in range(may.shape[1]):
        if may[u, d]:
            if found >= 0:
                return -1
            found = d
    return found


@compiled
def starts_in_places(
    order: IntArray,
    work: FloatArray,
    start: IntArray,
    source: IntArray,
    near: FloatArray,
    far: FloatArray,
    head: FloatArray,
    unit: IntArray,
    may: BoolArray,
    takes_turns: bool,
    starts: FloatArray,
) -> None:
    """starts float64[n, D], written: seconds before which no schedule starts an operator on a
    device. may bool[U, D]: where the operators of a unit can be. head float64[n] holds on every
    device; the rest is as in `earliest_starts`.

    For each edge into an operator, the least of the source's ends and delays passes before it
    starts: near from the same device, and far from any other. takes_turns: a device runs its
    operators in the order, so that whatever is certainly there has ended before a later one starts.
    """
    devices = may.shape[1]
    idle_at = np.zeros(devices)
    for v in order:
        for d in range(devices):
            starts[v, d] = max(head[v], idle_at[d])
        for k in range(start[v], start[v + 1]):
            u = source[k]
            least, second, where = np.inf, np.inf, -1
            for d in range(devices):
                if may[unit[u], d]:
                    if starts[u, d] < least:
                        least, second, where = starts[u, d], least, d
                    elif starts[u, d] < second:
                        second = starts[u, d]
            for d in range(devices):
                ready = (second if d == where else least) + far[k]
                if may[unit[u], d]:
                    ready = min(ready, starts[u, d] + near[k])
                starts[v, d] = max(starts[v, d], ready + work[u])
        certain = only_place(may, unit[v])
        if takes_turns and certain >= 0:
            idle_at[certain] = starts[v, certain] + work[v]


@compiled
def leave_possible(
    work: FloatArray,
    unit: IntArray,
    group: IntArray,
    clashes: BoolArray,
    before: FloatArray,
    after: FloatArray,
    step: float,
    may: BoolArray,
) -> bool:
    """Takes away from `may` where an operator's start and what follows do not fit into the step,
    and where a unit is that it clashes with. before, after float64[n, D]; group int64[U], -1 for
    none, and clashes bool[k, k]: units of groups that clash are never on one device. Returns
    whether it took anything away."""
    units, devices = may.shape
    took = False
    for v in range(len(work)):
        for d in range(devices):
            if may[unit[v], d] and before[v, d] + work[v] + after[v, d] > step:
                may[unit[v], d] = False
                took = True
    for u in range(units):
        if group[u] < 0:
            continue
        certain = only_place(may, u)
        if certain < 0:
            continue
        for w in range(units):
            if group[w] >= 0 and may[w, certain] and clashes[group[u], group[w]]:
                may[w, certain] = False
                took = True
    return took
