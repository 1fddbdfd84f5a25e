"""Earliest starts on one device, and elsewhere: bounds for a schedule in which some operators are
known to run on the device, and some not to."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def starts_in_two_places(
    order: IntArray,
    work: FloatArray,
    start: IntArray,
    source: IntArray,
    near: FloatArray,
    far: FloatArray,
    head: FloatArray,
    side: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """(here, elsewhere) float64[n] each, in seconds: before `here` no schedule starts the
    operator on the device, and before `elsewhere` on any other. side int64[n]: 1 for operators that
    run on the device, -1 for those that do not, 0 for those that may do either. head float64[n]
    holds in any schedule; the rest is as in `earliest_starts`.

    An edge takes near at least, and far where its ends are in two places; its source is in one of
    the two. So for each edge into an operator, the smaller of the source's two ends and delays
    passes before it starts.
    """
    n = len(order)
    here, elsewhere = np.empty(n), np.empty(n)
    for v in order:
        least_here, least_elsewhere = head[v], head[v]
        for k in range(start[v], start[v + 1]):
            u = source[k]
            from_here, from_elsewhere = here[u] + work[u], elsewhere[u] + work[u]
            least_here = max(least_here, min(from_here + near[k], from_elsewhere + far[k]))
            least_elsewhere = max(
                least_elsewhere, min(from_here + far[k], from_elsewhere + near[k])
            )
        here[v] = np.inf if side[v] == -1 else least_here
        elsewhere[v] = np.inf if side[v] == 1 else least_elsewhere
    return here, elsewhere
