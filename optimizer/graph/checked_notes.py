"""Checks, of a graph's notes, what the program itself reads; else they may have anything."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from placewire.optimizer.graph.rows import MOST_BYTES, GraphError, shown

# Those of a capture on several device types are 3 deep. Who reads and writes them is recursive.
_DEEPEST = 10
_COUNTS = ("batch", "accumulate", "shards")
_BYTES = ("program_bytes", "one_device_bytes")
_RECOMPUTED = ("none", "half", "all")
# How a bucket may be called: what others name is shown, and is an argument of a command.
BUCKET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@-]{0,63}")
BUCKET_NAME_WORDS = "a name of up to 64 letters, digits and characters _./@-"


def require_notes(notes: Any, operators: Collection[str]) -> None:
    """operators: the ids of the graph. Raises GraphError naming the key."""
    if not isinstance(notes, dict):
        raise _wrong("notes", notes, "an object")
    require_shallow("notes", notes)
    _require("loss", notes.get("loss"), operators)
    for key in ("inputs", "outputs"):
        listed = notes.get(key)
        if listed is not None and not isinstance(listed, list):
            raise _wrong(f"notes.{key}", listed, "a list of operators")
        for number, one in enumerate(listed or ()):
            _require(f"{key}[{number}]", one, operators)
    if not isinstance(whole := notes.get("whole_batch"), str | None):
        raise _wrong("notes.whole_batch", whole, "a text")
    for key in _COUNTS:
        count = notes.get(key)
        if isinstance(count, int) and not 0 <= count <= MOST_BYTES:
            raise _wrong(f"notes.{key}", count, f"a number from 0 to {MOST_BYTES}")
    if (recomputed := notes.get("recompute", "none")) not in _RECOMPUTED:
        raise _wrong("notes.recompute", recomputed, f"one of {', '.join(_RECOMPUTED)}")
    _require_buckets(notes)
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


def is_bucket_name(name: object) -> bool:
    return isinstance(name, str) and BUCKET_NAME.fullmatch(name) is not None


def _require_buckets(notes: dict[str, Any]) -> None:
    """Where the model has buckets, all of them by name, and the part of the steps of each."""
    if (name := notes.get("bucket")) is not None and not is_bucket_name(name):
        raise _wrong("notes.bucket", name, BUCKET_NAME_WORDS)
    names = notes.get("buckets", [])
    if not isinstance(names, list) or not all(map(is_bucket_name, names)):
        raise _wrong("notes.buckets", names, f"a list, each {BUCKET_NAME_WORDS}")
    if len(set(names)) < len(names):
        raise _wrong("notes.buckets", names, "each name once")
    if (shares := notes.get("bucket_shares")) is None:
        return
    if not isinstance(shares, dict) or shares.keys() != set(names):
        raise _wrong("notes.bucket_shares", shares, "a number for each of notes.buckets")
    for name, share in shares.items():
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not (is_number and 0 <= share <= 1):
            raise _wrong(f"notes.bucket_shares.{name}", share, "a number from 0 to 1")


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
