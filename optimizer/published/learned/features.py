"""HSDAG's features of a node: sections 2.3 and 3.4.

They are operator type one-hot (3), output shape, in- and out-degree one-hot, fractal dimension (4),
and positional encoding (5) of the place in the topological order. One-hot columns stand for the
types and degrees of the training graph; any other type or degree is a row of zeros.

Chosen where the paper leaves it open: distances are those of the undirected graph, and count other
nodes only, so that a path has dimension 1; a position is encoded in 16 numbers; a shape's extents
enter as logarithms, since sizes span many orders of magnitude; where a graph has no shapes, the
bytes of an operator's largest output stand for its shape. A node of several operators has the mean
of their types (appendix G) and the largest of their shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.published.engines.shared.deadline import Deadline
from placewire.optimizer.published.kernels.distances import growth_exponents
from placewire.optimizer.published.learned.nodes import Nodes
from placewire.optimizer.published.learned.settings import Feature

POSITION_NUMBERS = 16
# The number of nodes between two looks at the clock.
_CHUNK = 256
# No policy is trained with shapes of more dimensions.
_MOST_EXTENTS = 64
_SHAPE = re.compile(r"torch\.\w+\(([\d, ]*)\)")


@dataclass(frozen=True)
class Vocabulary:
    """The types and degrees that one-hot columns stand for, and how many numbers a shape has.
    without: groups of features that are left out, the paper's ablations."""

    types: tuple[str, ...]
    in_degrees: tuple[int, ...]
    out_degrees: tuple[int, ...]
    extents: int
    without: tuple[Feature, ...] = ()

    @property
    def columns(self) -> int:
        sizes = {
            "shape": self.extents,
            "structure": len(self.in_degrees) + len(self.out_degrees) + 1,
            "position": POSITION_NUMBERS,
        }
        return len(self.types) + sum(sizes[name] for name in sizes if name not in self.without)


def vocabulary_of(
    graph: OperatorGraph, nodes: Nodes, without: Sequence[Feature] = ()
) -> Vocabulary:
    into, out_of = degrees(nodes)
    return Vocabulary(
        types=tuple(sorted(set(graph.types))),
        in_degrees=tuple(np.unique(into).tolist()),
        out_degrees=tuple(np.unique(out_of).tolist()),
        extents=max((len(shape) for shape in shapes(graph, nodes)), default=0),
        without=tuple(sorted(set(without))),
    )


def vocabulary_from_json(document: Mapping[str, Any]) -> Vocabulary:
    """Undoes dataclasses.asdict. Raises KeyError, TypeError or ValueError for other documents."""
    found = Vocabulary(
        types=tuple(map(str, document["types"])),
        in_degrees=tuple(map(int, document["in_degrees"])),
        out_degrees=tuple(map(int, document["out_degrees"])),
        extents=int(document["extents"]),
        without=tuple(document["without"]),
    )
    if not 0 <= found.extents <= _MOST_EXTENTS or not set(found.without) <= set(get_args(Feature)):
        raise ValueError("not a vocabulary")
    return found


def features(
    graph: OperatorGraph, nodes: Nodes, vocabulary: Vocabulary, until: Deadline
) -> NDArray[np.float32]:
    """float32[N, columns]. Raises OutOfTimeError."""
    parts = [_types(graph, nodes, vocabulary.types)]
    if "shape" not in vocabulary.without:
        parts.append(_padded(shapes(graph, nodes), vocabulary.extents))
    if "structure" not in vocabulary.without:
        into, out_of = degrees(nodes)
        parts += [_one_hot(into, vocabulary.in_degrees), _one_hot(out_of, vocabulary.out_degrees)]
        parts.append(fractal_dimensions(nodes, until)[:, None])
    if "position" not in vocabulary.without:
        parts.append(positional_encoding(nodes.count, POSITION_NUMBERS))
    return np.concatenate(parts, axis=1).astype(np.float32)


def degrees(nodes: Nodes) -> tuple[IntArray, IntArray]:
    """int64[N] each: the numbers of in-neighbours and of out-neighbours."""
    n = nodes.count
    return np.bincount(nodes.target, minlength=n), np.bincount(nodes.source, minlength=n)


def fractal_dimensions(nodes: Nodes, until: Deadline) -> FloatArray:
    """float64[N], equation (4). Raises OutOfTimeError."""
    # Both directions of the edges as CSR, each neighbour once.
    ends = np.stack([nodes.source, nodes.target], axis=1)
    pairs = np.unique(np.concatenate([ends, ends[:, ::-1]]), axis=0)
    start = np.searchsorted(pairs[:, 0], np.arange(nodes.count + 1))
    near = np.ascontiguousarray(pairs[:, 1])
    found = np.zeros(nodes.count)
    for first in range(0, nodes.count, _CHUNK):
        until.require("the fractal dimensions of the graph's nodes")
        growth_exponents(start, near, first, min(first + _CHUNK, nodes.count), found)
    return found


def positional_encoding(count: int, size: int) -> FloatArray:
    """float64[count, size], equation (5); the first node has position 1."""
    position = np.arange(1, count + 1, dtype=np.float64)[:, None]
    angle = position / 10_000.0 ** (np.arange(0, size, 2) / size)[None, :]
    encoded = np.empty((count, size))
    encoded[:, 0::2], encoded[:, 1::2] = np.sin(angle), np.cos(angle)[:, : size // 2]
    return encoded


def shapes(graph: OperatorGraph, nodes: Nodes) -> list[tuple[int, ...]]:
    """For each node the largest output shape of its operators. Where the graph states no shape, the
    bytes of an operator's largest output are its shape's one extent."""
    stated = [_SHAPE.match(signature) for signature in graph.signatures]
    largest = np.zeros(graph.operator_count, dtype=np.int64)
    np.maximum.at(largest, graph.tensor_producer, graph.tensor_bytes)
    found: list[tuple[int, ...]] = [()] * nodes.count
    for node, match, size in zip(nodes.of_operator.tolist(), stated, largest.tolist(), strict=True):
        if match:
            shape = tuple(int(part) for part in match[1].split(",") if part.strip())
        else:
            shape = () if any(stated) else (size,)
        if _volume(shape) > _volume(found[node]):
            found[node] = shape
    return found


def unknown_types(graph: OperatorGraph, vocabulary: Vocabulary) -> int:
    """The number of operators whose type the vocabulary lacks."""
    known = set(vocabulary.types)
    return sum(kind not in known for kind in graph.types)


def _volume(shape: Sequence[int]) -> int:
    return math.prod(shape) if shape else 0


def _types(graph: OperatorGraph, nodes: Nodes, types: Sequence[str]) -> FloatArray:
    column = {kind: k for k, kind in enumerate(types)}
    mean = np.zeros((nodes.count, len(types)))
    size = np.bincount(nodes.of_operator, minlength=nodes.count)
    for node, kind in zip(nodes.of_operator.tolist(), graph.types, strict=True):
        if kind in column:
            mean[node, column[kind]] += 1.0 / size[node]
    return mean


def _one_hot(values: IntArray, known: Sequence[int]) -> FloatArray:
    return np.asarray(values[:, None] == np.array(known, dtype=np.int64), dtype=np.float64)


def _padded(rows: Sequence[Sequence[int]], size: int) -> FloatArray:
    """float64[N, size]: log(1 + extent) / 10. Extents beyond the policy's columns are left out."""
    padded = np.zeros((len(rows), size))
    for k, row in enumerate(rows):
        kept = row[:size]
        padded[k, : len(kept)] = np.log1p(np.array(kept, dtype=np.float64)) / 10.0
    return padded
