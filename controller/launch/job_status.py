"""Finds what is left of a plan's job: its running ranks, and its last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.last_checkpoint import last_checkpoint
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.launch.of_plans import of_plan
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Journal
from placewire.controller.records.report import CheckpointRow, RunReport


@dataclass(frozen=True)
class JobStatus:
    """ranks: of the plan. others: ranks of other plans, or of nobody knows which, on its servers.
    controller: the process that follows the ranks, None where none does. checkpoint_step: how
    many steps were done before the last checkpoint of this job, as far as its manifest tells.
    problems: what could not be found, and why."""

    ranks: tuple[RunningProgram, ...]
    controller: str | None
    checkpoint_step: int | None
    checkpoint_path: str | None
    problems: tuple[str, ...] = ()
    others: tuple[RunningProgram, ...] = ()


async def job_status(
    plan: Plan, found: Sequence[RunningProgram] | LaunchFailed, journal: Journal
) -> JobStatus:
    """found: the ranks on the plan's servers, or why not all of them could be looked at."""
    problems: list[str] = []
    last: CheckpointRow | None = None
    if isinstance(found, LaunchFailed):
        problems.append(f"cannot tell which ranks run: {found}")
        found = found.found
    ranks, others = of_plan(found, plan.name)
    if isinstance(plan.job, PlacedJob) and plan.job.checkpoint is not None:
        folder = Path(plan.job.checkpoint.folder)
        own = await last_checkpoint(plan.job, folder, problems.append)
        if own is not None:
            last = CheckpointRow(step=own.manifest.step, path=own.path)
        last = last or _last_reported(folder, journal, plan.name)
    return JobStatus(
        ranks=ranks,
        controller=journal.change_lock.holder(),
        checkpoint_step=last.step if last else None,
        checkpoint_path=last.path if last else None,
        problems=tuple(problems),
        others=others,
    )


def _last_reported(folder: Path, journal: Journal, plan_name: str) -> CheckpointRow | None:
    for run in reversed(journal.runs(plan_name)):
        try:
            row = RunReport.model_validate_json(run.report).checkpoint
        except ValidationError:  # Another version of Placewire wrote the report.
            continue
        if row is not None and Path(row.path).parent == folder:
            return row
    return None
