"""What messages take of a device, beside the operators that run on it.

A tensor that leaves its producer's device goes alone, which occupies the device for the time of a
message after the producer, or in a bundle, which copies it after the producer (`occupation` and
`bundles` of the simulation). So it takes at least the shorter of the two, and its bytes' time, of
that device before it travels. A tensor that comes takes the time of a message of one of its readers
there, after it arrived, unless it comes with others that do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.bounds.relaxation import crossing_seconds
from placewire.optimizer.problem import Problem


@dataclass(frozen=True)
class Messages:
    """A row for each reader of each tensor with bytes: tensor, source, target int64[k]; way
    float64[k]: least seconds from when the tensor has left its sender to its arrival; sending
    float64[k]: the least that it takes of its sender. taking: seconds that a message, however
    small, takes of its receiver."""

    tensor: IntArray
    source: IntArray
    target: IntArray
    way: FloatArray
    sending: FloatArray
    taking: float

    def once(self, rows: IntArray, after: FloatArray) -> IntArray:
        """Of these rows, one of each tensor: that of the largest `after`, float64[k]."""
        rows = rows[np.lexsort((-after[rows], self.tensor[rows]))]
        return rows[is_first(self.tensor[rows])]

    def paired(self, rows: IntArray, seconds: FloatArray) -> IntArray:
        """Of these rows, some of which no two have the same tensor or the same reader, those of
        most seconds, float64[k], first."""
        tensors, readers, found = set[int](), set[int](), list[int]()
        for k in rows[np.argsort(-seconds[rows], kind="stable")].tolist():
            tensor, reader = int(self.tensor[k]), int(self.target[k])
            if tensor not in tensors and reader not in readers:
                tensors.add(tensor)
                readers.add(reader)
                found.append(k)
        return np.array(found, dtype=np.int64)


def messages_of(problem: Problem) -> Messages:
    """Without rows where messages take no time of their devices."""
    graph, each = problem.graph, problem.message_seconds
    source, target, tensor = graph.edges
    size = graph.tensor_bytes[tensor]
    bytes_take = problem.message_seconds_per_byte * size
    copied = float(problem.copy_seconds_per_byte.min()) * size
    sending = bytes_take + np.minimum(each, copied)
    way = crossing_seconds(problem)[tensor] - each - bytes_take
    some = np.flatnonzero((sending > 0.0) & np.isfinite(way))
    return Messages(tensor[some], source[some], target[some], way[some], sending[some], each)


def is_first(ascending: IntArray) -> BoolArray:
    """bool[k]: where a value is not the one before."""
    first = np.ones(len(ascending), dtype=bool)
    first[1:] = ascending[1:] != ascending[:-1]
    return first
