"""What is left of a plan's job is found, whichever release ran it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import placewire.controller.launch.job_status as module
from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.job_status import job_status
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.plan.job import PlacedJob
from placewire.controller.records.journal import Journal
from placewire.controller.records.report import CheckpointRow, RunReport
from placewire.job.contract.checkpoint import MANIFEST, Listing, Manifest, checkpoint_path
from tests.controller.plans import plan, plan_document


def document(folder: Path) -> dict[str, Any]:
    made = plan_document()
    made["job"]["checkpoint"] = {"folder": str(folder), "every": 1}
    return made


def report(folder: Path) -> str:
    """Of a run that saved after 7 steps."""
    return RunReport(
        plan_name="small", plan_digest="d", generations={}, changes={}, sharing="strict",
        links=(), network="restored", stage_seconds={}, files={},
        checkpoint=CheckpointRow(step=7, path=str(folder / "7")),
    ).model_dump_json()  # fmt: skip


async def test_a_report_of_another_release_is_passed_over(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "state") as journal:
        journal.record_run("small", report(tmp_path / "kept"))
        journal.record_run("small", '{"version": 9, "plan": "small"}')
        found = await job_status(plan(document(tmp_path / "kept")), (), journal)
    assert (found.checkpoint_step, found.problems) == (7, ())


async def test_another_job_s_checkpoint_is_not_shown_as_this_one_s(tmp_path: Path) -> None:
    made = plan(document(tmp_path / "kept"))
    assert isinstance(made.job, PlacedJob)
    own = Manifest(
        step=0, structure_hash="h", model=made.job.model, batch=made.job.batch, seed=made.job.seed,
        optimizer=made.job.optimizer.name, optimizer_settings="", devices=("s1/0",), torch="2",
        tensors={}, files={},
    )  # fmt: skip

    def save(step: int, **changes: Any) -> None:
        path = checkpoint_path(tmp_path / "kept", "step-", step)
        path.mkdir(parents=True)
        saved = own.model_copy(update={"step": step, **changes})
        (path / MANIFEST).write_text(saved.model_dump_json())

    save(90, model="others:step")
    save(80, batch=own.batch + 1)
    with Journal.open(tmp_path / "state") as journal:
        found = await job_status(made, (), journal)
        assert found.checkpoint_step is None, "there is none of this job"
        journal.record_run("small", report(tmp_path / "kept"))
        found = await job_status(made, (), journal)
        assert found.checkpoint_step == 7, "as the last run reported"
        save(8)
        found = await job_status(made, (), journal)
    assert (found.checkpoint_step, found.problems) == (8, ())


async def test_a_folder_that_does_not_answer_is_told_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_ended = threading.Event()

    def listed(folder: Path) -> Listing:
        test_ended.wait()
        return Listing((), ())

    monkeypatch.setattr(module, "listed_in", listed)
    monkeypatch.setattr(module, "_LIST_SECONDS", 0.05)
    try:
        with Journal.open(tmp_path / "state") as journal:
            journal.record_run("small", report(tmp_path / "kept"))
            found = await job_status(plan(document(tmp_path / "kept")), (), journal)
    finally:
        test_ended.set()
    assert found.checkpoint_step == 7
    assert found.problems == (
        f"checkpoints: {tmp_path / 'kept'} does not answer within 0.05 s; look at the server that "
        "it is mounted from",
    )


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
