"""What is left of a plan's job is found, whichever release ran it."""

from __future__ import annotations

from pathlib import Path

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.job_status import job_status
from placewire.controller.launch.launcher import RunningProgram
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
        found = await job_status(plan(document), (), journal)
    assert (found.checkpoint_step, found.problems) == (7, ())


async def test_ranks_of_others_are_told_apart_and_a_server_out_of_reach_hides_none(
    tmp_path: Path,
) -> None:
    own = RunningProgram("s1", 7, 1.0, "a", plan="small")
    other = RunningProgram("s1", 8, 1.0, "b", plan="other")
    problem = LaunchFailed("SSH cannot be reached", where="s2", remedy="x", found=(own, other))
    with Journal.open(tmp_path / "state") as journal:
        found = await job_status(plan(plan_document()), problem, journal)
    assert (found.ranks, found.others) == ((own,), (other,))
    assert "s2: SSH cannot be reached" in found.problems[0]
