"""Reads the rows of foreign files for importers, with errors that name row and key."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewire.optimizer.graph.operator_graph import GraphError, TensorRow

# No file can mean more seconds, bytes or bits than this by one number.
_LARGEST = 1e18


@dataclass(frozen=True)
class Row:
    """One object of a foreign file. where: its place in the file, like `nodes[3]`."""

    values: Mapping[str, Any]
    where: str

    def value(self, key: str) -> Any:
        """Raises GraphError where the key is missing."""
        if key not in self.values:
            raise GraphError(f"{self.where}: key {key!r} is missing")
        return self.values[key]

    def number(self, key: str, default: float | None = None) -> float:
        """A number of 0 or more. Raises GraphError for other values."""
        if default is not None and self.values.get(key) is None:
            return default
        return number(self.value(key), f"{self.where}: {key}")

    def identifier(self, key: str) -> str:
        """A text or a whole number, returned as a text. Raises GraphError for other values."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise GraphError(f"{self.where}: {key} is {value!r}, expected a name or a number")
        return str(value)

    def text(self, key: str) -> str:
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise GraphError(f"{self.where}: {key} is {value!r}, expected a text")
        return value


def number(value: Any, where: str) -> float:
    """value as a float of 0 or more. Raises GraphError, beginning with `where`, for others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraphError(f"{where} is {value!r}, expected a number")
    if not 0 <= value <= _LARGEST:  # also false for nan
        reason = "is negative" if value < 0 else f"is not within 0..{_LARGEST:g}"
        raise GraphError(f"{where} is {value!r}: it {reason}")
    return float(value)


def rows(document: Any, key: str) -> list[Row]:
    """The objects of the list document[key]. Raises GraphError where there is no such list."""
    if not isinstance(document, dict):
        raise GraphError(f"found {type(document).__name__}, expected an object with {key!r}")
    found = document.get(key)
    if not isinstance(found, list):
        raise GraphError(f"{key} is {'missing' if key not in document else 'no list'}")
    for position, row in enumerate(found):
        if not isinstance(row, dict):
            raise GraphError(f"{key}[{position}] is {row!r}, expected an object")
    return [Row(row, f"{key}[{position}]") for position, row in enumerate(found)]


def distinct_ids(nodes: Sequence[Row]) -> dict[str, Row]:
    """The nodes by id. Raises GraphError naming both that share one."""
    found: dict[str, Row] = {}
    for row in nodes:
        identifier = row.identifier("id")
        if identifier in found:
            other = found[identifier].where
            raise GraphError(f"{row.where}: id {identifier!r} is also that of {other}")
        found[identifier] = row
    return found


def edge_ends(row: Row, known: Mapping[str, Row], source: str, target: str) -> tuple[str, str]:
    """Raises GraphError naming the edge where an end is no node, or both are the same."""
    ends = row.identifier(source), row.identifier(target)
    for key, end in zip((source, target), ends, strict=True):
        if end not in known:
            raise GraphError(f"{row.where}: {key} is {end!r}, which is no node")
    if ends[0] == ends[1]:
        raise GraphError(f"{row.where}: joins {ends[0]!r} to itself")
    return ends


def whole_bytes(size: float) -> int:
    """size rounded up, but for an excess that only floating-point arithmetic adds."""
    return math.ceil(size - 1e-6)


def tensors_by_size(ends: Iterable[tuple[str, str]], sizes: Iterable[int]) -> list[TensorRow]:
    """One tensor for all edges (producer, reader) of a producer that have equally many bytes."""
    readers: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    for (producer, reader), size in zip(ends, sizes, strict=True):
        readers[producer, size][reader] = None
    return [TensorRow(producer, tuple(names), size) for (producer, size), names in readers.items()]


def tensors_by_output(
    edges: Iterable[tuple[str, str, str, int, int]], operators: Iterable[str]
) -> list[TensorRow]:
    """An output of a producer is one tensor. Tensors and readers are in the order of the operators.

    edges: (where, producer, reader, number of the output, bytes). Raises GraphError, beginning with
    `where`, for an output of two sizes.
    """
    readers: dict[tuple[str, int], list[str]] = defaultdict(list)
    sizes: dict[tuple[str, int], int] = {}
    for where, producer, reader, output, size in edges:
        if sizes.setdefault((producer, output), size) != size:
            raise GraphError(f"{where}: output {output} of {producer!r} has two sizes")
        readers[producer, output].append(reader)
    position = {operator: k for k, operator in enumerate(operators)}
    return [
        TensorRow(key[0], tuple(sorted(readers[key], key=position.__getitem__)), sizes[key])
        for key in sorted(sizes, key=lambda key: (position[key[0]], key[1]))
    ]
