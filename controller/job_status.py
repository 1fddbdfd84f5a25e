"""What is known of a plan's job while nobody follows it: ranks that run, its last checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.contract.checkpoint import CheckpointError, checkpoints_in
from controller.plan import PlacedJob, Plan
from controller.report import CheckpointRow, RunReport

if TYPE_CHECKING:
    from controller.journal import Journal
    from controller.launch.launcher import Launcher, LeftRank


@dataclass(frozen=True)
class JobStatus:
    """controller: who follows the ranks, None where nobody does. checkpoint_step: how many steps
    are done in the last checkpoint. problem: why the folder of checkpoints was not looked at."""

    ranks: tuple[LeftRank, ...]
    controller: str | None
    checkpoint_step: int | None
    checkpoint_path: str | None
    problem: str = ""


def job_status(plan: Plan, launcher: Launcher, journal: Journal) -> JobStatus:
    problem = ""
    try:
        last = _last_in_folder(plan)
    except (CheckpointError, OSError) as error:
        last, problem = None, str(error)
    last = last or _last_reported(plan, journal)
    return JobStatus(
        ranks=launcher.left(),
        controller=journal.holder(),
        checkpoint_step=last.step if last else None,
        checkpoint_path=last.path if last else None,
        problem=problem,
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
    for text in reversed(journal.runs(plan.name)):
        row = RunReport.model_validate_json(text).checkpoint
        if row is not None and Path(row.path).parent == folder:
            return row
    return None
