"""Repeated blocks of a graph: the layers of a deep model, found by what they look like.

Each operator gets a label from its type, signature and sizes (and its times where there are no
signatures: measured times of like operators differ), refined a few times by the labels around it
(Weisfeiler-Leman). Operators of one label are the same position of several blocks,
in the order of the graph; the backward half of a model meets its layers in reverse, which the edges
between positions tell.
"""

from __future__ import annotations

import re
from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph

# A signature names its operands, which are others in every block.
_OPERAND = re.compile(r"%\w+")
_REFINEMENTS = 3
_LEAST_BLOCKS = 3
# So many operators of one block may look alike.
_MOST_ALIKE = 16
_NEARLY = 0.8
_Hashes = NDArray[np.uint64]


def repeated_blocks(graph: OperatorGraph) -> IntArray:
    """int64[positions, blocks]: the operator at each position of each block; (0, 0) where nothing
    repeats at least three times. No operator occurs twice."""
    label = _labels(graph)
    _, cls, counts = np.unique(label, return_inverse=True, return_counts=True)
    blocks = _block_count(counts)
    if blocks is None:
        return np.empty((0, 0), dtype=np.int64)
    position = np.empty(graph.operator_count, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.operator_count)
    rows = []
    inside = np.flatnonzero((counts % blocks == 0) & (counts <= _MOST_ALIKE * blocks))
    members = np.lexsort((position, cls))
    first = np.concatenate([[0], np.cumsum(counts)])
    for c in inside.tolist():
        # Several of one block look alike: they follow each other in the graph.
        rows.append(members[first[c] : first[c + 1]].reshape(blocks, -1).T)
    return _aligned(graph, np.concatenate(rows).astype(np.int64))


def _block_count(counts: IntArray) -> int | None:
    """The most blocks that explain nearly as many operators as any number does."""
    sizes = Counter(counts.tolist())
    covered = {
        times: sum(
            size * many
            for size, many in sizes.items()
            if size % times == 0 and size <= _MOST_ALIKE * times
        )
        for times in sizes
        if times >= _LEAST_BLOCKS
    }
    most = max(covered.values(), default=0)
    near = [times for times, operators in covered.items() if operators >= _NEARLY * most]
    return max(near, default=None)


def _mixed(values: _Hashes) -> _Hashes:
    """The finalizer of splitmix64: every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Hashes = values ^ (values >> np.uint64(31))
    return mixed


def _labels(graph: OperatorGraph) -> _Hashes:
    """uint64[n], equal for operators that look alike as far as _REFINEMENTS edges away."""
    signatures = [_OPERAND.sub("%", signature) for signature in graph.signatures]
    pairs = list(zip(graph.types, signatures, strict=True))
    number = {pair: k for k, pair in enumerate(dict.fromkeys(pairs))}
    label = np.array([number[pair] for pair in pairs], dtype=np.uint64)
    columns = [graph.weight_bytes, graph.activation_bytes, graph.workspace_bytes]
    if not any(signatures):
        columns += [np.ascontiguousarray(c).view(np.int64) for c in graph.seconds.T.copy()]
    for column in columns:
        label = _mixed(label + _mixed(column.astype(np.uint64)))
    source, target, tensor = graph.edges
    size = _mixed(graph.tensor_bytes[tensor].astype(np.uint64))
    for _ in range(_REFINEMENTS):
        around = np.zeros(len(label), dtype=np.uint64)
        np.add.at(around, target, _mixed(label[source] + size))
        np.add.at(around, source, _mixed(label[target] ^ ~size))
        label = _mixed(label + np.uint64(0x9E3779B97F4A7C15) + around)
    return label


def _aligned(graph: OperatorGraph, table: IntArray) -> IntArray:
    """The same rows, each turned round where its edges say that it counts the blocks backwards."""
    positions, blocks = table.shape
    row = np.full(graph.operator_count, -1, dtype=np.int64)
    column = np.zeros(graph.operator_count, dtype=np.int64)
    row[table] = np.arange(positions)[:, None]
    column[table] = np.arange(blocks)[None, :]
    source, target = _neighbours(graph, row >= 0)
    used = (row[source] >= 0) & (row[target] >= 0) & (row[source] != row[target])
    source, target = source[used], target[used]
    votes: dict[int, dict[int, int]] = {}
    pairs = row[source] * positions + row[target]
    straight = np.abs(column[source] - column[target]) <= 1
    turned = np.abs(column[source] + column[target] - (blocks - 1)) <= 1
    key, where = np.unique(pairs, return_inverse=True)
    balance = np.bincount(where, weights=straight.astype(float) - turned, minlength=len(key))
    for pair, vote in zip(key.tolist(), balance.tolist(), strict=True):
        a, b = divmod(pair, positions)
        if vote:
            for p, q in ((a, b), (b, a)):
                votes.setdefault(p, {})[q] = 1 if vote > 0 else -1
    position = np.empty(graph.operator_count, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.operator_count)
    return _turned(table, votes, np.argsort(position[table].min(axis=1), kind="stable").tolist())


def _neighbours(graph: OperatorGraph, inside: BoolArray) -> tuple[IntArray, IntArray]:
    """Edges, and pairs that one operator outside the blocks joins."""
    source, target, _ = graph.edges
    outside = np.concatenate([source, target]), np.concatenate([target, source])
    joins = ~inside[outside[0]] & inside[outside[1]]
    order = np.lexsort((outside[1][joins], outside[0][joins]))
    middle, ends = outside[0][joins][order], outside[1][joins][order]
    same = middle[1:] == middle[:-1]
    return (
        np.concatenate([source, ends[:-1][same]]).astype(np.int64),
        np.concatenate([target, ends[1:][same]]).astype(np.int64),
    )


def _turned(
    table: IntArray, votes: dict[int, dict[int, int]], earliest_first: list[int]
) -> IntArray:
    """Rows that no vote joins are taken as they begin: forward."""
    direction = np.zeros(len(table), dtype=np.int64)
    for first in earliest_first:
        if direction[first]:
            continue
        direction[first] = 1
        waiting = deque([first])
        while waiting:
            p = waiting.popleft()
            for q, vote in votes.get(p, {}).items():
                if not direction[q]:
                    direction[q] = direction[p] * vote
                    waiting.append(q)
    return np.where((direction > 0)[:, None], table, table[:, ::-1])
