"""Which commit, machine and day each solve in the benchmarks' cache is of.

The rows of the cache do not say it, and a checkout other than the one that solved them may read
them: it must not count them as its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.report import UNKNOWN
from benchmarks.reproduction.findings import replace_text
from placewire.frozen import Frozen


class Origin(Frozen):
    commit: str
    machine: str
    date: str


# The origin of a row that the cache has without one.
NOBODY_KNOWS = Origin(commit=UNKNOWN, machine=UNKNOWN, date=UNKNOWN)


def origins_of(rows_file: Path) -> dict[str, Origin]:
    """By the keys of rows."""
    file = _beside(rows_file)
    kept = json.loads(file.read_text()) if file.exists() else {}
    return {key: Origin.model_validate(one) for key, one in kept.items()}


def keep_origins(rows_file: Path, new: Mapping[str, Origin]) -> None:
    """In addition to those that are kept."""
    if new:
        kept = {**origins_of(rows_file), **new}
        replace_text(_beside(rows_file), "{\n" + ",\n".join(_lines(kept.items())) + "\n}\n")


def _lines(kept: Iterable[tuple[str, Origin]]) -> Iterable[str]:
    return (f"{json.dumps(key)}: {one.model_dump_json()}" for key, one in kept)


def _beside(rows_file: Path) -> Path:
    return rows_file.with_suffix(".origins.json")
