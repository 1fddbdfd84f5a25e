"""Operators and tensors as rows, as builders and files state them; checks the rows of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

# The most bytes of one graph: sums of more could overflow 64 bits.
MOST_BYTES = 2**62
_MOST_SECONDS = 1e9
MOST_MICRO_BATCHES = 1 << 20
# The most times of one graph, one for each operator and device type, also where the file has none:
# those of 150,000 operators on 200 device types.
MOST_TIMES = 30_000_000

Row = TypeVar("Row")


class GraphError(ValueError):
    """A graph or graph file is wrong: the message says what and where."""


@dataclass(frozen=True)
class OperatorRow:
    id: str
    type: str
    seconds: Mapping[str, float]
    signature: str = ""
    weight_bytes: int = 0
    activation_bytes: int = 0
    workspace_bytes: int = 0
    flops: int = 0
    traffic_bytes: int = 0
    colocation: str | None = None
    micro_batch: int | None = None
    module: str = ""

    @property
    def all_bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes + self.workspace_bytes


@dataclass(frozen=True)
class TensorRow:
    producer: str
    consumers: tuple[str, ...]
    bytes: int


_OPERATOR_KEYS = {field.name for field in fields(OperatorRow)}
_TENSOR_KEYS = {field.name for field in fields(TensorRow)}
_HEADER_KEYS = {
    "version", "name", "structure_hash", "device_types", "notes", "operators", "tensors",
}  # fmt: skip
COUNTS = ("weight_bytes", "activation_bytes", "workspace_bytes", "flops", "traffic_bytes")


def operator_row(row: Any) -> OperatorRow:
    """Raises GraphError naming the key."""
    _keys(row, _OPERATOR_KEYS, ("id", "type", "seconds"))
    for key in ("id", "type", "signature", "module"):
        _text(row.get(key, ""), key)
    if row.get("colocation") is not None:
        _text(row["colocation"], "colocation")
    for key in COUNTS:
        _bytes(row.get(key, 0), key)
    if (number := row.get("micro_batch")) is not None:
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if not is_whole or not 0 <= number < MOST_MICRO_BATCHES:
            raise _wrong("micro_batch", number, f"a whole number below {MOST_MICRO_BATCHES}")
    if not isinstance(row["seconds"], dict):
        raise _wrong("seconds", row["seconds"], "an object: a time for each device type")
    for device_type, value in row["seconds"].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= _MOST_SECONDS):
            wanted = f"a number from 0 to {_MOST_SECONDS:g} (leave it out where it cannot run)"
            raise _wrong(f"seconds.{device_type}", value, wanted)
    return OperatorRow(**row)


def tensor_row(row: Any) -> TensorRow:
    """Raises GraphError naming the key."""
    _keys(row, _TENSOR_KEYS, ("producer", "consumers", "bytes"))
    consumers = _texts(row["consumers"], "consumers")
    return TensorRow(_text(row["producer"], "producer"), consumers, _bytes(row["bytes"], "bytes"))


def checked_header(document: Any, version: int) -> Mapping[str, Any]:
    """The file's top level, with lists of unread rows. Raises GraphError naming the key."""
    if not isinstance(document, dict) or document.get("version") != version:
        found = document.get("version") if isinstance(document, dict) else type(document).__name__
        raise GraphError(f"version is {found!r}; this release reads {version}")
    _keys(document, _HEADER_KEYS, ("operators", "tensors"))
    for key in ("operators", "tensors"):
        if not isinstance(document[key], list):
            raise _wrong(key, document[key], "a list")
    for key in ("name", "structure_hash"):
        if document.get(key) is not None:
            _text(document[key], key)
    if document.get("device_types") is not None:
        types = _texts(document["device_types"], "device_types")
        if len(set(types)) != len(types) or "" in types:
            raise _wrong("device_types", list(types), "names that differ")
    return document


def each(rows: list[Any], read: Callable[[Any], Row], key: str) -> list[Row]:
    """Reads every row. Raises GraphError with the position of the row that is wrong."""
    result = []
    for position, row in enumerate(rows):
        try:
            result.append(read(row))
        except GraphError as error:
            raise GraphError(f"{key}[{position}]: {error}") from error
    return result


def _keys(row: Any, known: set[str], needed: tuple[str, ...]) -> None:
    if not isinstance(row, dict):
        raise GraphError(f"found {shown(row)}, expected an object with {', '.join(needed)}")
    if unknown := set(row) - known:
        raise GraphError(f"unknown key {min(unknown)!r}; accepted: {', '.join(sorted(known))}")
    for key in needed:
        if key not in row:
            raise GraphError(f"key {key!r} is missing")


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise _wrong(key, value, "a text")
    return value


def _texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _wrong(key, value, "a list of names")
    return tuple(value)


def _bytes(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_BYTES:
        raise _wrong(key, value, f"a whole number of bytes from 0 to {MOST_BYTES}")
    return value


def _wrong(key: str, value: Any, expected: str) -> GraphError:
    return GraphError(f"{key} is {shown(value)}, expected {expected}")


def shown(value: Any) -> str:
    """What was found, cut to fit a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
