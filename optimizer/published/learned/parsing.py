"""HSDAG's graph parsing: every node keeps its strongest edge, and what then hangs together is one
group (section 2.4, equations (9) and (10), after Song et al., "Graph parsing networks", ICLR 2024).

An edge is passed over where its ends have no device in common that can run both groups and hold
their weights. Of edges with one score the first is the strongest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.published.learned.nodes import Nodes


def strongest_edges(nodes: Nodes, score: NDArray[np.float32], kept: IntArray) -> IntArray:
    """int64[N]: of the edges kept int64[K], with score float32[K], the strongest at each node in
    either direction; -1 where it has none."""
    strongest = np.full(nodes.count, -1, dtype=np.int64)
    ends = np.concatenate([nodes.source[kept], nodes.target[kept]])
    edge, value = np.concatenate([kept, kept]), np.concatenate([score, score])
    order = np.lexsort((-edge, value))
    strongest[ends[order]] = edge[order]  # the last assignment stays: the largest
    return strongest


def groups(nodes: Nodes, retained: IntArray, memory_bytes: IntArray) -> IntArray:
    """int64[N]: groups along the retained edges int64[...], numbered by their first node."""
    parent = list(range(nodes.count))
    able = list(nodes.able)
    weight = nodes.weight_bytes.tolist()

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    for e in np.unique(retained[retained >= 0]).tolist():
        a, b = root(int(nodes.source[e])), root(int(nodes.target[e]))
        if a == b:
            continue
        both = able[a] & able[b] & (weight[a] + weight[b] <= memory_bytes)
        if both.any():
            a, b = min(a, b), max(a, b)
            parent[b], able[a], weight[a] = a, both, weight[a] + weight[b]
    roots = np.array([root(v) for v in range(nodes.count)], dtype=np.int64)
    numbered: IntArray = np.unique(roots, return_inverse=True)[1].reshape(nodes.count)
    return numbered
