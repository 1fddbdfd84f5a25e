"""Takes longest paths out of a graph, one after the other (linear clustering); compiled."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def take_longest_paths(
    topological: IntArray,
    outputs_start: IntArray,
    outputs: IntArray,
    consumers_start: IntArray,
    consumers: IntArray,
    own: FloatArray,
    on_edge: FloatArray,
    cluster: IntArray,
    clusters: int,
    at_most: int,
) -> int:
    """Makes the longest path through operators without a cluster (cluster int64[n] is -1 there) a
    cluster, up to at_most times. Returns the number of clusters then.

    The length of a path is the sum of own float64[n] and on_edge float64[m] seconds. An operator
    takes its edges with it, so that no later path leads through it.
    """
    n = len(own)
    tail = np.empty(n)
    following = np.empty(n, dtype=np.int64)
    for _ in range(at_most):
        head = -1
        for index in range(n - 1, -1, -1):
            i = topological[index]
            if cluster[i] >= 0:
                continue
            longest, after = 0.0, -1
            for o in range(outputs_start[i], outputs_start[i + 1]):
                e = outputs[o]
                for k in range(consumers_start[e], consumers_start[e + 1]):
                    c = consumers[k]
                    if cluster[c] < 0 and (after < 0 or on_edge[e] + tail[c] > longest):
                        longest, after = on_edge[e] + tail[c], c
            tail[i] = own[i] + longest
            following[i] = after
            if head < 0 or tail[i] > tail[head] or (tail[i] == tail[head] and i < head):
                head = i
        if head < 0:
            return clusters
        while head >= 0:
            cluster[head] = clusters
            head = following[head]
        clusters += 1
    return clusters
