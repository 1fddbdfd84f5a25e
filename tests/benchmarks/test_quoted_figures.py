"""What docs/job.md says of cut collectives is what the code does, and what the table measured."""

from __future__ import annotations

import re

from placewire.controller.compile.scripts import cut_from_bytes
from tests.paths import ROOT

TEXT = " ".join((ROOT / "docs" / "job.md").read_text().split())
REPORT = (ROOT / "docs" / "benchmarks" / "job.md").read_text()


def parts_of_all_nics(heading: str) -> tuple[list[int], list[int]]:
    """Percent of all NICs from 8 MB on: what cut collectives got, and what MPTCP did."""
    _, _, item = REPORT.partition(heading)
    table = item[: item.index("\n## ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
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
