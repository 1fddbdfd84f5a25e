"""Finds the coarse structure of a training step: its layers in order, and the tails of the chain.

In the order of layers, a layer's forward and backward halves are neighbours. A tail hangs off the
main chain, like a weight's update.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.units import unit_sums
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


def layers_of(graph: OperatorGraph, unit: IntArray, work: FloatArray) -> FloatArray | None:
    """float64[n]: the part of the model's work that lies before the middle of each operator's
    layer, the same for its copies in all micro-batches; None where micro-batches are no copies.

    unit int64[n]: operators with the same number stay together. work float64[n].
    """
    copies = _copies(graph)
    if copies is None:
        return None
    count = int(copies.max(initial=-1)) + 1
    first = np.full(int(unit.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[unit[::-1]] = copies[::-1]
    joined = joined_units(np.arange(count), first[unit], copies, count)
    _, group = np.unique(joined[copies], return_inverse=True)
    order = spectral_order(graph, group.astype(np.int64))
    sums = unit_sums(group, work)[order]
    middle = np.empty(len(order))
    middle[order] = (np.cumsum(sums) - sums / 2) / max(float(sums.sum()), 1e-300)
    layers: FloatArray = middle[group]
    return layers


def _copies(graph: OperatorGraph) -> IntArray | None:
    """int64[n]: the same number for the copies of one operator in all micro-batches, another for
    each operator of none; None where micro-batches differ in the order of the recorded sort."""
    order, part = graph.topological_order, graph.micro_batch
    members = [order[part[order] == k] for k in range(int(part.max(initial=-1)) + 1)]
    _, kind = np.unique(graph.types, return_inverse=True)
    number = np.empty(graph.operator_count, dtype=np.int64)
    for inside in members:
        if len(inside) != len(members[0]) or (kind[inside] != kind[members[0]]).any():
            return None
        number[inside] = np.arange(len(inside))
    shared = np.flatnonzero(part < 0)
    number[shared] = np.arange(len(shared)) + (len(members[0]) if members else 0)
    return number


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


def ranges_of(layer: FloatArray, work: FloatArray, weight_bytes: IntArray, most: int) -> IntArray:
    """int64[n]: which of at most so many ranges of layers, numbered along the model, each operator
    is in. layer float64[n], as layers_of() gives it. Work and weights count alike, so that an
    embedding, which has weights and no work, is a range of its own."""
    share = work / max(float(work.sum()), 1e-300)
    share = share + weight_bytes / max(float(weight_bytes.sum()), 1.0)
    level, at = np.unique(layer, return_inverse=True)
    of_level = np.bincount(at, share, len(level))
    middle = (np.cumsum(of_level) - of_level / 2) / max(float(of_level.sum()), 1e-300)
    number = np.minimum((middle * most).astype(np.int64), most - 1)
    _, found = np.unique(number[at], return_inverse=True)
    return found.astype(np.int64)
