"""Finds the coarse structure of a training step: its layers in order, and the tails of the chain.

In the order of layers, a layer's forward and backward halves are neighbours. A tail hangs off the
main chain, like a weight's update.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.kernels.graphs.heads import joined_units

# Components with fewer units keep their recorded order.
_LEAST_TO_ORDER = 8
# Up to so many units, all eigenvectors take less time than the import of scipy.sparse.
_DENSE_UP_TO = 400
# This part of the largest degree is added to the singular Laplacian, so that it can be factorised.
_SHIFT = 1e-6


def spectral_order(graph: OperatorGraph, unit: IntArray) -> IntArray:
    """int64[units]: units by the Fiedler vector of the undirected graph (Fiedler 1973), one
    component after the other, the largest first.

    The weight of an edge is the root of its tensor's bytes. A layer's activations join its forward
    and backward operators, so that the order runs along the layers.
    """
    count = int(unit.max(initial=-1)) + 1
    source, target, tensor = graph.edges
    u, v = unit[source], unit[target]
    between = u != v
    u, v = u[between], v[between]
    pull = np.sqrt(graph.tensor_bytes[tensor][between].astype(np.float64)) + 1.0
    label = joined_units(np.arange(count), u, v, count)
    order: list[IntArray] = []
    for k in np.argsort(-np.bincount(label), kind="stable").tolist():
        members = np.flatnonzero(label == k)
        if len(members) >= _LEAST_TO_ORDER:
            number = np.full(count, -1, dtype=np.int64)
            number[members] = np.arange(len(members))
            inside = label[u] == k
            vector = _fiedler(len(members), number[u[inside]], number[v[inside]], pull[inside])
            members = members[np.argsort(vector, kind="stable")]
        order.append(members.astype(np.int64))
    return np.concatenate(order) if order else np.empty(0, dtype=np.int64)


def _fiedler(size: int, u: IntArray, v: IntArray, pull: FloatArray) -> FloatArray:
    """float64[size]: the eigenvector of the second smallest eigenvalue of the Laplacian, its sign
    fixed by its first entry that is not 0."""
    if size <= _DENSE_UP_TO:
        laplacian = np.zeros((size, size))
        np.subtract.at(laplacian, (u, v), pull)
        laplacian += laplacian.T
        np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
        vector: FloatArray = np.linalg.eigh(laplacian).eigenvectors[:, 1]
    else:
        vector = _sparse_second(size, u, v, pull)
    turned: FloatArray = vector * np.sign(vector[np.flatnonzero(np.abs(vector) > 1e-12)[0]])
    return turned


def _sparse_second(size: int, u: IntArray, v: IntArray, pull: FloatArray) -> FloatArray:
    from scipy.sparse import csgraph, csr_matrix, diags
    from scipy.sparse.linalg import eigsh

    half = csr_matrix((pull, (u, v)), shape=(size, size))
    laplacian = csgraph.laplacian(half + half.T).tocsc()
    shift = _SHIFT * float(laplacian.diagonal().max())
    raised = laplacian + diags(np.full(size, shift))
    begin = np.linspace(-1.0, 1.0, size)  # not random, so that a graph always gives the same order
    _, vectors = eigsh(raised.tocsc(), k=2, sigma=0.0, which="LM", v0=begin, tol=1e-6)
    vector: FloatArray = vectors[:, 1]
    return vector


def tail_groups(graph: OperatorGraph) -> list[list[int]]:
    """The tail of each co-location group that ends in an operator without readers, and the group's
    other operators. A tail is that operator, and every operator whose readers are all in the tail:
    in a training step, a weight's update with its gradient.

    In the order of each tail's first operator.
    """
    key = graph.colocation.tolist()
    home = [-1] * graph.operator_count  # the key of the group at whose end an operator hangs
    for i in graph.topological_order[::-1].tolist():
        readers = {
            c for e in graph.output_tensors(i).tolist() for c in graph.tensor_consumers(e).tolist()
        }
        if not readers:
            home[i] = key[i]
            continue
        ends = {home[c] for c in readers}
        if len(ends) == 1 and (key[i] < 0 or key[i] in ends):
            home[i] = ends.pop()
    groups: dict[int, list[int]] = {}
    for i in graph.topological_order.tolist():
        if home[i] >= 0:
            groups.setdefault(home[i], []).append(i)
    for i, k in enumerate(key):
        if k in groups and home[i] != k:
            groups[k].append(i)
    return list(groups.values())
