"""What is left of a plan's job is found, whichever release ran it."""

from __future__ import annotations

from pathlib import Path

from placewire.controller.launch.job_status import job_status
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.records.journal import Journal
from placewire.controller.records.report import CheckpointRow, RunReport
from tests.controller.plans import plan, plan_document


async def test_a_report_of_another_release_is_passed_over(tmp_path: Path) -> None:
    document = plan_document()
    document["job"]["checkpoint"] = {"folder": str(tmp_path / "kept"), "every": 1}
    report = RunReport(
        plan_name="small", plan_digest="d", generations={}, changes={}, sharing="strict",
        links=(), network="restored", stage_seconds={}, files={},
        checkpoint=CheckpointRow(step=7, path=str(tmp_path / "kept" / "7")),
    )  # fmt: skip
    with Journal.open(tmp_path / "state") as journal:
        journal.record_run("small", report.model_dump_json())
        journal.record_run("small", '{"version": 9, "plan": "small"}')
        found = await job_status(plan(document), NoLauncher(), journal)
    assert (found.checkpoint_step, found.problems) == (7, ())
