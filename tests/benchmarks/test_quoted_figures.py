"""What documents say of cut collectives and of Standard Evaluation is what the code does, and what
tables of the job's benchmark measured."""

from __future__ import annotations

import re

from placewire.controller.compile.scripts import cut_from_bytes
from tests.paths import ROOT

TEXT, MODELS = (
    " ".join((ROOT / "docs" / f"{name}.md").read_text().split()) for name in ("job", "model")
)
REPORT = (ROOT / "docs" / "benchmarks" / "job.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    _, _, item = REPORT.partition(heading)
    table = item[: item.index("\n## ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def parts_of_all_nics(heading: str) -> tuple[list[int], list[int]]:
    """Percent of all NICs from 8 MB on: what cut collectives got, and what MPTCP did."""
    rows = rows_of(heading)
    large = [row for row in rows if len(row) == 9 and row[1] in ("8 MB", "64 MB")]
    assert len(large) == 8
    cut, mptcp = ([int(row[k].rstrip("%")) for row in large] for k in (7, 8))
    return cut, mptcp


def test_a_collective_is_cut_from_the_sizes_that_are_named() -> None:
    said = re.search(
        r"(\d+) KiB of a rank's tensor at the least, (\d+) kB with two NICs of 1 Gbit/s, "
        r"([\d.]+) MB with two of 10\.",
        TEXT,
    )
    assert said is not None
    least, of_one, of_ten = map(float, said.groups())
    assert cut_from_bytes((1e6, 1e6)) == least * 1024
    assert cut_from_bytes((1e9, 1e9)) == of_one * 1e3
    assert cut_from_bytes((1e10, 1e10)) == of_ten * 1e6


def test_what_a_large_all_reduce_gets_is_what_was_measured() -> None:
    cut, mptcp = parts_of_all_nics("## 10. An all-reduce on two servers, in ms")
    for name, parts in ((r"of 8 and of 64 MB get", cut), ("MPTCP gets", mptcp)):
        said = re.search(rf"{name} (\d+) to (\d+) %", TEXT)
        assert said is not None and [int(word) for word in said.groups()] == [
            min(parts),
            max(parts),
        ]


def test_how_far_estimates_are_off_is_what_was_measured() -> None:
    rows = rows_of("## 5. Standard Evaluation: estimated and then measured")
    measured = [row for row in rows if len(row) == 12 and row[3].isdigit()]
    memory, time = ([float(row[k].rstrip("%")) for row in measured] for k in (4, 6))
    said = re.search(
        r"estimates of memory were off by ([\d.]+) and ([\d.]+) % on average .*?"
        r"those of time by (\d+) and (\d+) %",
        MODELS,
    )
    assert said is not None and len(measured) == 2
    assert [float(word) for word in said.groups()] == [
        *(round(part, 1) for part in memory),
        *(round(part) for part in time),
    ]
