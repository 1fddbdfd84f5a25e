"""What the programs of a lab use, and what they leave in the kernel and in databases, over time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.table import Table

# Of the samples, these shares at the beginning and at the end are compared.
COMPARED = 0.2


@dataclass(frozen=True)
class Usage:
    """The sums over all servers, at one moment."""

    agents_mebibytes: float
    agents_descriptors: float
    agents_threads: float
    switches_mebibytes: float
    rows_of_the_databases: float
    rules: float
    routes: float
    interfaces: float
    journal_mebibytes: float
    states_kibibytes: float


def resident_mebibytes(pid: int) -> float:
    """0 where the process is gone."""
    return _status(pid, "VmRSS") / 1024


def threads(pid: int) -> float:
    return _status(pid, "Threads")


def descriptors(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _status(pid: int, key: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{key}:")), 0.0)


def usage_table(usages: Sequence[Usage]) -> Table:
    many = max(1, int(len(usages) * COMPARED))
    rows = []
    for field in fields(Usage):
        values = [float(getattr(usage, field.name)) for usage in usages]
        rows.append((
            field.name.replace("_", " "),
            f"{statistics.median(values[:many]):.1f}",
            f"{statistics.median(values[-many:]):.1f}",
            f"{max(values):.1f}",
        ))  # fmt: skip
    return Table(
        "2. What the four servers use",
        ("sum over all servers", "at first", "at last", "most"),
        rows,
        notes=(
            f"at first, at last: the medians of the first and last {COMPARED:.0%} of {len(usages)} "
            "operations, each after its operation.",
        ),
    )
