"""HSDAG's graph parsing: every node keeps its strongest edge; nodes that these connect are a group,
and the groups are the nodes of the parsed graph.

Section 2.4, equations (9) to (11), after Song et al., "Graph parsing networks" (ICLR 2024). An
edge joins two groups only where some device can run both and hold their weights. Of edges with
equal scores the first is the strongest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.units import unit_sums
from placewire.optimizer.published.learned.nodes import Nodes, between
from placewire.optimizer.published.reductions.shared.groups import root


def strongest_edges(nodes: Nodes, score: NDArray[np.float32], kept: IntArray) -> IntArray:
    """int64[N]: the strongest edge at each node, in either direction, of the edges kept int64[K] of
    score float32[K]; -1 where the node has none of them."""
    strongest = np.full(nodes.count, -1, dtype=np.int64)
    ends = np.concatenate([nodes.source[kept], nodes.target[kept]])
    edge, value = np.concatenate([kept, kept]), np.concatenate([score, score])
    order = np.lexsort((-edge, value))
    strongest[ends[order]] = edge[order]  # the last assignment, of the largest score, stays
    return strongest


def groups(nodes: Nodes, retained: IntArray, memory_bytes: IntArray) -> IntArray:
    """int64[N]: the group of each node along the retained edges int64[...], numbered by their first
    node."""
    above = list(range(nodes.count))
    able = list(nodes.able)
    weight = nodes.weight_bytes.tolist()
    for e in np.unique(retained[retained >= 0]).tolist():
        a, b = root(above, int(nodes.source[e])), root(above, int(nodes.target[e]))
        if a == b:
            continue
        both = able[a] & able[b] & (weight[a] + weight[b] <= memory_bytes)
        if both.any():
            a, b = min(a, b), max(a, b)
            above[b], able[a], weight[a] = a, both, weight[a] + weight[b]
    roots = np.array([root(above, v) for v in range(nodes.count)], dtype=np.int64)
    numbered: IntArray = np.unique(roots, return_inverse=True)[1].reshape(nodes.count)
    return numbered


def parsed_graph(nodes: Nodes, group: IntArray) -> Nodes:
    """G' of (11), A' = X^T A X, where X assigns each node its group int64[N]. A' has an edge where
    the product is not 0; its diagonal, the edges within a group, is left out (link_ignore_self_loop
    of table 4)."""
    count = int(group.max(initial=-1)) + 1
    able = np.ones((count, nodes.able.shape[1]), dtype=np.bool_)
    np.logical_and.at(able, group, nodes.able)
    source, target = between(group[nodes.source], group[nodes.target])
    weight_bytes = unit_sums(group, nodes.weight_bytes)
    return Nodes(group[nodes.of_operator], able, source, target, weight_bytes)
