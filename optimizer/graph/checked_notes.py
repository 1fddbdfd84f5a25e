"""Checks, of a graph's notes, what the program itself reads; else they may have anything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from placewire.optimizer.graph.rows import MOST_BYTES, GraphError, shown

# Those of a capture on several device types are 3 deep. Who reads and writes them is recursive.
_DEEPEST = 10
_COUNTS = ("batch", "accumulate", "shards")
_BYTES = ("program_bytes", "one_device_bytes")
_RECOMPUTED = ("none", "half", "all")


def require_notes(notes: Any, operators: Collection[str]) -> None:
    """operators: the ids of the graph. Raises GraphError naming the key."""
    if not isinstance(notes, dict):
        raise _wrong("notes", notes, "an object")
    require_shallow("notes", notes)
    _require("loss", notes.get("loss"), operators)
    inputs = notes.get("inputs")
    if inputs is not None and not isinstance(inputs, list):
        raise _wrong("notes.inputs", inputs, "a list of operators")
    for number, one in enumerate(inputs or ()):
        _require(f"inputs[{number}]", one, operators)
    if not isinstance(whole := notes.get("whole_batch"), str | None):
        raise _wrong("notes.whole_batch", whole, "a text")
    for key in _COUNTS:
        count = notes.get(key)
        if isinstance(count, int) and not 0 <= count <= MOST_BYTES:
            raise _wrong(f"notes.{key}", count, f"a number from 0 to {MOST_BYTES}")
    if (recomputed := notes.get("recompute", "none")) not in _RECOMPUTED:
        raise _wrong("notes.recompute", recomputed, f"one of {', '.join(_RECOMPUTED)}")
    _require_bytes("", notes)
    profiles = notes.get("profiles")
    if profiles is not None and not isinstance(profiles, dict):
        raise _wrong("notes.profiles", profiles, "an object")
    for name, one in (profiles or {}).items():
        if not isinstance(one, dict):
            raise _wrong(f"notes.profiles.{shown(name)}", one, "an object")
        _require_bytes(f"profiles.{shown(name)}.", one)


def require_shallow(what: str, document: dict[str, Any]) -> None:
    """Raises GraphError where it is nested so deep that reading or writing it could fail."""
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        within = [one.values() if isinstance(one, dict) else one for one in level]
        level = [v for values in within for v in values if isinstance(v, dict | list)]
        if not level:
            return
    raise GraphError(f"{what} is nested more than {_DEEPEST} deep")


def _require(key: str, value: Any, operators: Collection[str]) -> None:
    if value is not None and not (isinstance(value, str) and value in operators):
        raise _wrong(f"notes.{key}", value, "the id of an operator")


def _require_bytes(where: str, notes: dict[str, Any]) -> None:
    for key in _BYTES:
        count = notes.get(key)
        is_whole = isinstance(count, int) and not isinstance(count, bool)
        if count is not None and not (is_whole and 0 <= count <= MOST_BYTES):
            wanted = f"a whole number of bytes from 0 to {MOST_BYTES}"
            raise _wrong(f"notes.{where}{key}", count, wanted)


def _wrong(key: str, value: Any, expected: str) -> GraphError:
    return GraphError(f"{key} is {shown(value)}, expected {expected}")
