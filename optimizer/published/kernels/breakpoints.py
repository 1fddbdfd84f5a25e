"""Cuts a topological order into the clusters that send each other least; compiled."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def breakpoints(
    into_start: IntArray,
    into: IntArray,
    into_seconds: FloatArray,
    leader: IntArray,
    size: IntArray,
    able: BoolArray,
    reach: int,
    most_bytes: int,
) -> IntArray:
    """int64[n + 1]: for each place j, where the cluster begins that ends before it (S and P of
    Celeritas (6)). A place is a position in the order.

    into[into_start[j]:into_start[j + 1]]: the places that send to place j, each once; into_seconds:
    how long they send. size int64[n] bytes; able bool[n, k]. A cluster has at most `reach` places
    and most_bytes, or one place alone; one device type can run all of it; and a place whose leader
    is an earlier place is in the cluster of its leader, or alone. Of equal cuts, the one with the
    longest last cluster is taken.
    """
    n = len(leader)
    # For each place: the seconds that it still sends to j or beyond (4), and to how many places.
    open_seconds, open_count = np.zeros(n), np.zeros(n, dtype=np.int64)
    for e in range(len(into)):
        open_seconds[into[e]] += into_seconds[e]
        open_count[into[e]] += 1
    best, begin = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=np.int64)
    best[0] = 0.0
    common = np.empty(able.shape[1], dtype=np.bool_)
    for j in range(1, n + 1):
        for e in range(into_start[j - 1], into_start[j]):
            i = into[e]
            open_count[i] -= 1
            # Exactly 0 at the end, or rounding would decide between equal cuts.
            open_seconds[i] = open_seconds[i] - into_seconds[e] if open_count[i] > 0 else 0.0
        cost, held, earliest = 0.0, 0, n
        common[:] = True
        for i in range(j - 1, max(j - reach, 0) - 1, -1):
            cost += open_seconds[i]
            held += size[i]
            earliest = min(earliest, leader[i])
            shared = False
            for k in range(len(common)):
                common[k] = common[k] and able[i, k]
                shared = shared or common[k]
            alone = i == j - 1
            if not alone and (held > most_bytes or not shared):
                break
            if (alone or earliest >= i) and best[i] + cost <= best[j]:
                best[j] = best[i] + cost
                begin[j] = i
    return begin
