"""How importers read foreign rows: each mistake names row and key."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewire.optimizer.graph.operator_graph import GraphError, TensorRow

# Nobody can mean more seconds, bytes or bits than this by one number.
_LARGEST = 1e18


@dataclass(frozen=True)
class Row:
    """One object of a foreign file and where it is, like `nodes[3]`."""

    values: Mapping[str, Any]
    where: str

    def value(self, key: str) -> Any:
        """Raises GraphError where the key is missing."""
        if key not in self.values:
            raise GraphError(f"{self.where}: key {key!r} is missing")
        return self.values[key]

    def number(self, key: str, default: float | None = None) -> float:
        """0 or more. Raises GraphError for what is none."""
        if default is not None and self.values.get(key) is None:
            return default
        return number(self.value(key), f"{self.where}: {key}")

    def identifier(self, key: str) -> str:
        """A text or a whole number, as text."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise GraphError(f"{self.where}: {key} is {value!r}, expected a name or a number")
        return str(value)

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise GraphError(f"{self.where}: {key} is {value!r}, expected a text")
        return value


def number(value: Any, where: str) -> float:
    """value as a float of 0 or more. Raises GraphError that begins with `where`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraphError(f"{where} is {value!r}, expected a number")
    if not 0 <= value <= _LARGEST:  # also false for nan
        reason = "is negative" if value < 0 else f"is not within 0..{_LARGEST:g}"
        raise GraphError(f"{where} is {value!r}: it {reason}")
    return float(value)


def rows(document: Any, key: str) -> list[Row]:
    """Raises GraphError where document has no list of objects of that name."""
    if not isinstance(document, dict):
        raise GraphError(f"found {type(document).__name__}, expected an object with {key!r}")
    found = document.get(key)
    if not isinstance(found, list):
        raise GraphError(f"{key} is {'missing' if key not in document else 'no list'}")
    for position, row in enumerate(found):
        if not isinstance(row, dict):
            raise GraphError(f"{key}[{position}] is {row!r}, expected an object")
    return [Row(row, f"{key}[{position}]") for position, row in enumerate(found)]


def distinct_ids(nodes: Sequence[Row], key: str = "id") -> dict[str, Row]:
    """The nodes by id. Raises GraphError naming both that share one."""
    found: dict[str, Row] = {}
    for row in nodes:
        identifier = row.identifier(key)
        if identifier in found:
            raise GraphError(
                f"{row.where}: id {identifier!r} is also that of {found[identifier].where}"
            )
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
    """Rounded up, but for what the arithmetic alone adds."""
    return math.ceil(size - 1e-6)


class TensorsByProducer:
    """Edges gathered into tensors: the readers of one tensor of one producer."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, int], list[str]] = defaultdict(list)

    def add(self, producer: str, consumer: str, size: int) -> None:
        """One tensor for all readers of equally many bytes."""
        self._readers[producer, size].append(consumer)

    def __iter__(self) -> Iterator[TensorRow]:
        for (producer, size), readers in self._readers.items():
            yield TensorRow(producer, tuple(dict.fromkeys(readers)), size)
