"""Item 2: whether each engine gives a placement that passes the check, or says why not, in time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.methods.field import LIMIT_SECONDS, grand_cases, rows_of
from benchmarks.table import Table
from placewire.optimizer.published.comparison.rows import Row

_KINDS = ("placed", "refused", "infeasible", "out of time")


def tables(pictures: Path | None) -> Iterator[Table]:
    grouped: dict[str, list[Row]] = {}
    for row in rows_of(grand_cases()):
        grouped.setdefault(row.engine, []).append(row)
    rows, broken = [], []
    for engine, mine in grouped.items():
        count = {kind: sum(row.outcome == kind for row in mine) for kind in _KINDS}
        slowest = max(mine, key=lambda row: row.search_seconds)
        late = sum(not row.in_time for row in mine)
        rows.append([
            engine, str(count["placed"]), str(sum(row.checked for row in mine)),
            *(str(count[kind]) for kind in _KINDS[1:]),
            str(sum(not row.why for row in mine if row.outcome != "placed")),
            f"{slowest.search_seconds:.1f}", str(late),
        ])  # fmt: skip
        broken += [
            f"{row.graph}, {row.engine}: {row.outcome}, {row.search_seconds:.1f} s. {row.why}"
            for row in mine
            if row.outcome in ("broken", "overran") or not row.in_time
        ]
    yield Table(
        title="2. Which of its promises each engine kept",
        columns=("engine", "placed", "checked", "refused", "no fit", "no time", "without why",
                 "slowest s", "late"),
        rows=rows,
        notes=(
            "checked: its placement file was read back and passed `optimizer check`. no fit: it "
            "found no placement within the memories; no time: it had none when its time ran out. "
            f"late: later than {LIMIT_SECONDS:g} s and a tenth of them.",
            *(broken or ["Nothing was late, and nothing broke a rule."]),
        ),
    )  # fmt: skip
