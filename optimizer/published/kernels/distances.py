"""Measures how the number of nodes within a distance of a node grows with it; compiled."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def growth_exponents(
    near_start: IntArray, near: IntArray, first: int, last: int, exponent: FloatArray
) -> None:
    """Fills exponent float64[n] for the nodes first..last - 1; near_start, near: neighbours in CSR.

    The exponent is the slope of log(nodes within r) over log r, by least squares over all distances
    r from the node to another; 0 where there are fewer than two distances.
    """
    n = len(near_start) - 1
    queue = np.empty(n, dtype=np.int64)
    distance = np.empty(n, dtype=np.int64)
    met = np.full(n, -1, dtype=np.int64)
    for v in range(first, last):
        queue[0], filled, at = v, 1, 0
        met[v], distance[v] = v, 0
        while at < filled:
            u = queue[at]
            at += 1
            for k in range(near_start[u], near_start[u + 1]):
                w = near[k]
                if met[w] != v:
                    met[w] = v
                    distance[w] = distance[u] + 1
                    queue[filled] = w
                    filled += 1
        # The queue is sorted by distance: where a distance ends, all nodes before lie within it.
        count, sum_x, sum_y, sum_xx, sum_xy = 0, 0.0, 0.0, 0.0, 0.0
        for k in range(1, filled):
            r = distance[queue[k]]
            if k + 1 == filled or distance[queue[k + 1]] > r:
                x, y = np.log(float(r)), np.log(float(k))
                count += 1
                sum_x += x
                sum_y += y
                sum_xx += x * x
                sum_xy += x * y
        spread = sum_xx - sum_x * sum_x / max(count, 1)
        exponent[v] = (sum_xy - sum_x * sum_y / count) / spread if count > 1 else 0.0
