"""Item 11: the search on steps of core operators, with the updates written out, beside that of the
same steps as captured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.engine.certified import COLUMNS, NOTES, cells, first_within
from benchmarks.engine.measured import Ask, Result, solve
from benchmarks.engine.setting import captured_file, cluster
from benchmarks.table import Table, milliseconds
from placewire.optimizer.graph.graph_file import load_graph

# For each search.
LIMIT_SECONDS: Mapping[str, float] = {"alexnet": 30.0, "vgg16": 30.0, "bert": 60.0}
GIGABITS = (20.0, 160.0)
# Under `thesis` all that any operator makes counts as held.
MEMORY_BYTES = 32 * 2**30
_REFUSED = ["refused", *["-"] * (len(COLUMNS) - 1)]


def tables(_: Path | None) -> Iterator[Table]:
    rows, refused = [], list[str]()
    for name, limit in LIMIT_SECONDS.items():
        for gigabits in GIGABITS:
            row, why = _row(name, gigabits, limit)
            rows.append(row)
            refused += why
    yield Table(
        title="11. Fine graphs: decomposed, thesis, strict, 4 servers x 3 NICs",
        columns=("graph (operators), Gbit/s, s", *COLUMNS, "then<10% s", "captured", "captured ms",
                 "ratio"),
        rows=rows,
        notes=(
            *NOTES,
            "then<10%: like 1st<10%, of the bound that was known then. captured: the operators of "
            "the graph as captured, which is coarser, and its step by the same search in the same "
            "time; ratio: the step of the decomposed graph over it. Devices of 32 GiB; those of a "
            "row without `one ms` hold no whole step. The thesis' own graphs have more operators, "
            "as docs/model.md says.",
            *refused,
        ),
    )  # fmt: skip


def _row(name: str, gigabits: float, limit: float) -> tuple[list[str], list[str]]:
    """(the row, why searches of it were refused)."""
    files = [captured_file(name, decompose=fine) for fine in (True, False)]
    fine, coarse = (_solved(file, gigabits, limit) for file in files)
    operators = [load_graph(file).operator_count for file in files]
    steps = [None if one.refusal else one.placement.step_seconds for one in (fine, coarse)]
    heading = f"{name} ({operators[0]}), {gigabits:g}, {limit:g}"
    row = [
        heading, *(_REFUSED if fine.refusal else cells(fine)), first_within(fine, None, 0.10),
        str(operators[1]), milliseconds(steps[1]),
        f"{steps[0] / steps[1]:.2f}" if steps[0] and steps[1] else "-",
    ]  # fmt: skip
    kinds = zip(("decomposed", "captured"), (fine, coarse), strict=True)
    return row, [f"{heading}, {kind}: {one.refusal}" for kind, one in kinds if one.refusal]


def _solved(file: Path, gigabits: float, limit: float) -> Result:
    on = cluster(gigabits, memory_bytes=MEMORY_BYTES)
    return solve(Ask(file, on, "auto", "strict", model="thesis", time_limit=limit))
