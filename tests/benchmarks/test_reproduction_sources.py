"""Figures of ours that are of reports and of tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report import UNKNOWN
from benchmarks.reproduction import keys
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entry import Claim, Entry, FromReport, FromTests
from benchmarks.reproduction.findings import Run
from benchmarks.reproduction.rules import Within
from benchmarks.reproduction.sources import NoReportError, reported, worked
from tests.benchmarks.reproduction_examples import took

REPORT = """# Measured

## 8. A script

| servers | started | step, s | part | part |
| --- | ---: | ---: | ---: | ---: |
| 2 | alone | 0.55 | 53.4% | - |
| 2 | applied | 1,024.5 | -0.3% | +7% |

Measured at commit 4cc6127e on 2026-11-28, 2 cores (x86_64), Python 3.11.7.

## 9. Another
"""


def test_figures_of_a_report_are_read_with_their_commit(tmp_path: Path):
    (tmp_path / "job.md").write_text(REPORT)
    source = FromReport("job.md", "8. A script", "make bench-job", keys=2)
    found = reported(source, tmp_path)
    assert (found.commit, found.date) == ("4cc6127e", "2026-11-28")
    assert found.machine == "2 cores (x86_64), Python 3.11.7"
    numbers = {one.what: one.number().low for one in found.findings if one.known}
    assert numbers == {
        "alone: step, s": 0.55, "alone: part": 0.534, "applied: step, s": 1024.5,
        "applied: part": -0.003, "applied: part (2)": 0.07,
    }  # fmt: skip
    assert {one.model for one in found.findings} == {"2 servers"}
    assert not found.disturbed
    for title in ("7. Gone", "9. Another"):
        with pytest.raises(NoReportError, match=r"job.md has no table .*`make bench-job` writes"):
            reported(replace(source, title=title), tmp_path)


def test_figures_of_a_report_are_older_after_a_change_of_their_table_alone(monkeypatch, tmp_path):
    file, report = tmp_path / "job.md", REPORT + "\n| x | y |\n"
    monkeypatch.setattr(keys, "ROOT", tmp_path)
    entry = Entry("A paper", "figure 1", "a", FromReport("job.md", "8. A script", "make"))

    def key(text: str) -> str:
        file.write_text(text)
        return keys.key_of(entry)

    assert key(report) == key(report.replace("| x | y |", "| x | z |"))
    assert key(report) == key(report.replace("Measured at", "What it shows.\n\nMeasured at"))
    assert key(report) == key(report.replace("Python 3.11.7.", "Python 3.11.7. What it shows."))
    assert key(report) != key(report.replace("0.55", "0.54"))
    assert key(report) != key(report.replace("4cc6127e", "5cc6127e"))


def test_figures_of_a_report_whose_commit_nobody_knows_are_older():
    source = FromReport("docs/benchmarks/job.md", "8. A script", "make")
    claim = Claim("It is short.", "-", (Within(("step, s",), at_most=2.0, unit="s"),))
    entry = Entry("A paper", "figure 1", "steps", source, (claim,))

    def page(commit: str) -> str:
        run = Run(source=entry.name, key=keys.key_of(entry), commit=commit, machine="m", date="d",
                  findings=(took("step, s", 1.0),))  # fmt: skip
        return document([entry], (), {(run.source, run.model): run})

    assert "| holds (1 of 1) |" in page("0dd10c69")
    assert "| holds (1 of 1), older |" in page(UNKNOWN)
    assert "at commit unknown on d, m. Nobody can name the sources" in page(UNKNOWN)


@pytest.mark.parametrize("prose", ["", " It was placed anew, with seed 8."])
def test_a_report_of_figures_that_were_measured_beside_other_programs_says_so(
    tmp_path: Path, prose: str
):
    told = f"Python 3.11.7, beside other programs.{prose}"
    (tmp_path / "job.md").write_text(REPORT.replace("Python 3.11.7.", told))
    source = FromReport("job.md", "8. A script", "make bench-job", keys=2, times=("step, s",))
    found = reported(source, tmp_path)
    assert found.disturbed
    assert found.machine == "2 cores (x86_64), Python 3.11.7"
    with pytest.raises(NoReportError, match=r"beside other programs; its entry .* say in `times`"):
        reported(replace(source, times=None), tmp_path)


def test_worked_examples_are_run_as_tests(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_figure_1(record_property): record_property('it', 'passes')\n"
        "@pytest.mark.parametrize('k', [1, 2])\n"
        "def test_figure_2(k): assert k == 1\n"
        "def test_other(): raise ValueError\n"
    )
    found = worked(FromTests(("test_it.py",), "figure"), tmp_path)
    assert {one.what: one.text for one in found} == {"figure_1": "1 of 1", "figure_2": "1 of 2"}
