"""A pytest plugin that writes each skipped test, and why, to a file that several runs share.

The file is named by PLACEWIRE_SKIPPED; `make test` prints it when all its runs have ended.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

VARIABLE = "PLACEWIRE_SKIPPED"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _write(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _write(report)


def _write(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and (file := os.environ.get(VARIABLE)):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        line = f"{' '.join(why.removeprefix('Skipped: ').split())}\t{report.nodeid}\n"
        # One write of a line to a file that is only appended to is whole, whoever else writes.
        with Path(file).open("ab", buffering=0) as lines:
            lines.write(line.encode())


def summary(file: Path) -> str:
    """The reasons, each with its tests."""
    tests = defaultdict(list)
    for line in file.read_text().splitlines() if file.exists() else ():
        why, _, test = line.partition("\t")
        tests[why].append(test)
    if not tests:
        return "no test was skipped"
    lines = [f"skipped: {sum(map(len, tests.values()))}"]
    for why, names in sorted(tests.items()):
        lines += [f"  {why}", *(f"    {name}" for name in sorted(names))]
    return "\n".join(lines)
