"""Figures of ours that do not come from a preset: worked examples that are tests, and tables of
reports."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.report import DISTURBED
from benchmarks.reproduction.entry import FromReport, FromTests
from benchmarks.reproduction.findings import Finding, exact

_NUMBER = re.compile(r"([+-]?[0-9][0-9,]*(?:\.[0-9]+)?)\s*(%?)")
_MEASURED = re.compile(
    rf"^Measured at commit (\S+) on ([0-9-]+), ([^\n]*?\d)(, {DISTURBED})?\.(?=\s|$)", re.M
)

_NOT_PASSED = {"failure", "error", "skipped"}


class NoReportError(ValueError):
    """Says which table is not where the list has it, or cannot be read as the list has it."""


@dataclass(frozen=True)
class Reported:
    findings: tuple[Finding, ...]
    commit: str
    date: str
    machine: str
    disturbed: bool


def worked(source: FromTests, root: Path) -> tuple[Finding, ...]:
    """Which part of the cases of each test passed. Raises OSError."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", *source.files, "-k", source.chosen]
        subprocess.run([*command, f"--junitxml={report}"], cwd=root, stdout=sys.stderr, check=False)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        passed: dict[str, list[bool]] = defaultdict(list)
        for case in cases:
            name = case.attrib["name"].partition("[")[0].removeprefix("test_")
            passed[name].append(not any(one.tag in _NOT_PASSED for one in case))
    return tuple(
        exact("-", name, f"{sum(some)} of {len(some)}", sum(some) / len(some))
        for name, some in passed.items()
    )


def reported(source: FromReport, root: Path) -> Reported:
    """A cell's first number is the figure; the same name of a column again has a number. Raises
    OSError, NoReportError."""
    lines, measured = _table(source, root)
    if len(lines) < 3 or measured is None:
        raise NoReportError(
            f"{source.file} has no table {source.title!r} that says where it was measured; "
            f"`{source.command}` writes it"
        )
    commit, date, machine, disturbed = measured.groups()
    if disturbed and source.times is None:
        raise NoReportError(
            f"{source.file} has table {source.title!r}, which was measured {DISTURBED}; its entry "
            "in benchmarks/reproduction must say in `times` which of its figures they make longer"
        )
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    names = _distinct(header)
    findings = [
        _cell(_model(header[0], row[0]), ", ".join(row[1 : source.keys]), name, cell)
        for row in rows
        for name, cell in list(zip(names, row, strict=True))[source.keys :]
    ]
    return Reported(tuple(findings), commit, date, machine, disturbed is not None)


def table_text(source: FromReport, root: Path) -> str:
    """The rows, and where they were measured, without any prose. Raises OSError."""
    lines, measured = _table(source, root)
    return "\n".join([*lines, measured[0] if measured else ""])


def _table(source: FromReport, root: Path) -> tuple[list[str], re.Match[str] | None]:
    """Neither is there without the table's heading."""
    _, _, after = (root / source.file).read_text().partition(f"\n## {source.title}\n")
    section = after.partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return lines, _MEASURED.search(section)


def _model(column: str, cell: str) -> str:
    return f"{cell} {column}" if cell.isdigit() else cell


def _distinct(header: list[str]) -> list[str]:
    seen: dict[str, int] = defaultdict(int)
    names = []
    for name in header:
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def _cell(model: str, row: str, column: str, cell: str) -> Finding:
    what = f"{row}: {column}" if row else column
    number = _NUMBER.search(cell)
    if number is None:
        return Finding(model=model, what=what, text=cell, why="no number", ended="none")
    value = float(number[1].replace(",", ""))
    return exact(model, what, cell, round(value / 100, 9) if number[2] else value)
