"""The lists of past decisions and runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from placewire.controller.records.journal import Run
from placewire.controller.records.program import ProgramRow
from placewire.controller.records.report import RailRow, RunReport
from placewire.controller.show.history import runs_table

REPORT = RunReport(
    plan_name="small", plan_digest="d", generations={}, changes={}, sharing="job", links=(),
    network="restored", stage_seconds={}, files={}, steps=0,
)  # fmt: skip
SENT = RailRow(
    server="s1", rail="a", nic="n", sent_bytes=1, share=1.0, planned_share=1.0,
    within_tolerance=None,
)  # fmt: skip


def _cells(report: RunReport) -> list[str]:
    console = Console(width=140, file=io.StringIO())
    run = Run(plan_name="small", unix_seconds=0.0, report=report.model_dump_json())
    with console.capture() as shown:
        console.print(runs_table([run]))
    (row,) = [line for line in shown.get().splitlines() if line.startswith("│")]
    return [cell.strip() for cell in row.split("│")[2:-1]]


def test_a_script_s_run_has_no_devices_and_no_steps_that_are_known() -> None:
    script = REPORT.model_copy(update={"rails": (SENT,)})
    assert _cells(script) == ["small", "", "job", "", "", "", "", "", "done"]
    assert _cells(REPORT) == ["small", "", "job", "", "0", "", "", "", "done"], (
        "it was to run steps"
    )


@pytest.mark.parametrize(
    "program, told",
    [
        (ProgramRow(kind="script", name="/home/u/train.py"), "train.py"),
        (ProgramRow(kind="script", name="package.train"), "package.train"),
        (ProgramRow(kind="model", name="package.models.bert:step"), "bert:step"),
        (ProgramRow(kind="graph", name="graphs/alexnet.json.gz"), "alexnet.json.gz"),
    ],
)
def test_the_program_that_a_run_s_ranks_ran_is_named(program: ProgramRow, told: str) -> None:
    assert _cells(REPORT.model_copy(update={"program": program}))[1] == told
