"""The report of the job's figures: does an item measured again replace only its own tables?"""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import write_tables
from benchmarks.table import Table


def table(title: str, value: str) -> Table:
    return Table(title=title, columns=("what", "seconds"), rows=[["x", value]])


def test_an_item_measured_again_replaces_its_own_tables_only(tmp_path: Path) -> None:
    file = tmp_path / "job.md"
    write_tables(2, [table("2. Bytes", "1.25"), table("2. Rails", "2.25")], file, "# Head\n")
    write_tables(1, [table("1. Equal", "3.25")], file, "# Head\n")
    write_tables(2, [table("2. Bytes", "4.25"), table("2. Rails", "5.25")], file, "# Head\n")
    lines = file.read_text().splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## 1. Equal", "## 2. Bytes", "## 2. Rails"]
    assert [line for line in lines if line.startswith("| x")] == [
        "| x | 3.25 |",
        "| x | 4.25 |",
        "| x | 5.25 |",
    ]
    assert lines[0].startswith("# ") and sum("Measured at commit" in line for line in lines) == 3


def test_a_table_says_whether_other_programs_ran_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "job.md"
    write_tables(1, [table("1. Equal", "1.25")], file, "# Head\n")
    write_tables(2, [table("2. Bytes", "2.25")], file, "# Head\n", disturbed=True)
    _, quiet, disturbed = file.read_text().split("## ")
    assert "beside other programs" not in quiet
    assert disturbed.rstrip().endswith(", beside other programs.")
