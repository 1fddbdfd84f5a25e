"""What is known of a plan's job while nobody follows it: ranks that run, its last checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.errors import LaunchFailed
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.controller.records.report import CheckpointRow, RunReport
from placewire.job.contract.checkpoint import CheckpointError, checkpoints_in

if TYPE_CHECKING:
    from placewire.controller.launch.launcher import Launcher, LeftRank
    from placewire.controller.records.journal import Journal


@dataclass(frozen=True)
class JobStatus:
    """controller: who follows the ranks, None where nobody does. checkpoint_step: how many steps
    are done in the last checkpoint. problems: what could not be looked at, and why."""

    ranks: tuple[LeftRank, ...]
    controller: str | None
    checkpoint_step: int | None
    checkpoint_path: str | None
    problems: tuple[str, ...] = ()


def job_status(plan: Plan, launcher: Launcher, journal: Journal) -> JobStatus:
    problems: list[str] = []
    ranks: tuple[LeftRank, ...] = ()
    try:
        ranks = launcher.left()
    except LaunchFailed as error:
        problems.append(f"ranks are not looked for: {error}")
    try:
        last = _last_in_folder(plan)
    except (CheckpointError, OSError) as error:
        last = None
        problems.append(f"checkpoints: {error}")
    last = last or _last_reported(plan, journal)
    return JobStatus(
        ranks=ranks,
        controller=journal.holder(),
        checkpoint_step=last.step if last else None,
        checkpoint_path=last.path if last else None,
        problems=tuple(problems),
    )


def _last_in_folder(plan: Plan) -> CheckpointRow | None:
    """Where this machine sees the folder too."""
    if not isinstance(plan.job, PlacedJob) or plan.job.checkpoint is None:
        return None
    found = checkpoints_in(Path(plan.job.checkpoint.folder))
    return CheckpointRow(step=found[-1].manifest.step, path=found[-1].path) if found else None


def _last_reported(plan: Plan, journal: Journal) -> CheckpointRow | None:
    if not isinstance(plan.job, PlacedJob) or plan.job.checkpoint is None:
        return None
    folder = Path(plan.job.checkpoint.folder)
    for run in reversed(journal.runs(plan.name)):
        row = RunReport.model_validate_json(run.report).checkpoint
        if row is not None and Path(row.path).parent == folder:
            return row
    return None
