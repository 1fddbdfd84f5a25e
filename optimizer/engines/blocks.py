"""Finds the repeated blocks of a graph, like the layers of a deep model, by how they look.

Each operator gets a label from its type, signature and sizes (from its times too, but only where
the graph has no signatures, as measured times of like operators differ), refined a few times by the
labels around it (Weisfeiler-Leman). Operators of one label have the same position in several
blocks, in the order of the graph. The backward half of a model meets its layers in reverse, as
the edges between positions show.
"""

from __future__ import annotations

import re
from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.arrays import BoolArray, IntArray, row_starts
from placewire.optimizer.graph.operator_graph import OperatorGraph

# A signature names its operands, which differ from block to block.
_OPERAND = re.compile(r"%\w+")
_REFINEMENTS = 3
_LEAST_BLOCKS = 3
# The most operators of one block that may look alike.
_MOST_ALIKE = 16
_NEARLY = 0.8
_Hashes = NDArray[np.uint64]


def repeated_blocks(graph: OperatorGraph) -> IntArray:
    """int64[positions, blocks]: the operator at each position of each block, none of them twice;
    shape (0, 0) where nothing repeats at least _LEAST_BLOCKS times."""
    label = _labels(graph)
    _, cls, counts = np.unique(label, return_inverse=True, return_counts=True)
    blocks = _block_count(counts)
    if blocks is None:
        return np.empty((0, 0), dtype=np.int64)
    inside = np.flatnonzero((counts % blocks == 0) & (counts <= _MOST_ALIKE * blocks))
    members = np.lexsort((graph.position, cls))
    first = row_starts(cls, len(counts))
    # Operators that look alike within one block follow each other in the graph.
    rows = [members[first[c] : first[c + 1]].reshape(blocks, -1).T for c in inside.tolist()]
    return _aligned(graph, np.concatenate(rows).astype(np.int64))


def _block_count(counts: IntArray) -> int | None:
    """The largest number of blocks that explains nearly as many operators as any other does."""
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
    """uint64[n], equal for operators that look alike up to _REFINEMENTS edges away."""
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
    """The same rows, each reversed where its edges show that it counts the blocks backwards."""
    positions, blocks = table.shape
    row, column = places_in(table, graph.operator_count)
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
    earliest_first = np.argsort(graph.position[table].min(axis=1), kind="stable")
    return _turned(table, votes, earliest_first.tolist())


def places_in(table: IntArray, operators: int) -> tuple[IntArray, IntArray]:
    """(row, column) int64[operators] of each operator in the table; row -1 where it has none."""
    row = np.full(operators, -1, dtype=np.int64)
    column = np.zeros(operators, dtype=np.int64)
    row[table] = np.arange(table.shape[0])[:, None]
    column[table] = np.arange(table.shape[1])[None, :]
    return row, column


def _neighbours(graph: OperatorGraph, inside: BoolArray) -> tuple[IntArray, IntArray]:
    """(source, target) of edges, and of pairs that an operator outside the blocks joins."""
    source, target, _ = graph.edges
    middle, ends = np.concatenate([source, target]), np.concatenate([target, source])
    joins = ~inside[middle] & inside[ends]
    order = np.lexsort((ends[joins], middle[joins]))
    middle, ends = middle[joins][order], ends[joins][order]
    same = middle[1:] == middle[:-1]
    return (
        np.concatenate([source, ends[:-1][same]]).astype(np.int64),
        np.concatenate([target, ends[1:][same]]).astype(np.int64),
    )


def _turned(
    table: IntArray, votes: dict[int, dict[int, int]], earliest_first: list[int]
) -> IntArray:
    """The rows in one direction, that of the earliest row among all that votes join."""
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
