"""Finds what is left of a plan's job: its running ranks, and its last checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from placewire.controller.abandonable import abandonable
from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.launch.of_plans import of_plan
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Journal
from placewire.controller.records.report import CheckpointRow, RunReport
from placewire.job.contract.checkpoint import Checkpoint, Manifest, listed_in

# A folder that a dead server exports answers nobody.
_LIST_SECONDS = 10.0


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
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                listed = await abandonable(partial(listed_in, folder))
            last = _last_of(listed.checkpoints, plan.job)
            problems += [f"checkpoints: {one.why}" for one in listed.unusable if one.is_ours]
        except TimeoutError:
            problems.append(
                f"checkpoints: {folder} does not answer within {_LIST_SECONDS:g} s; look at the "
                "server that it is mounted from"
            )
        except OSError as error:
            problems.append(f"checkpoints: {error}")
        last = last or _last_reported(folder, journal, plan.name)
    return JobStatus(
        ranks=ranks,
        controller=journal.change_lock.holder(),
        checkpoint_step=last.step if last else None,
        checkpoint_path=last.path if last else None,
        problems=tuple(problems),
        others=others,
    )


def _last_of(found: Sequence[Checkpoint], job: PlacedJob) -> CheckpointRow | None:
    """Other jobs' checkpoints may stand beside the job's. Returns None, too, where this machine
    does not share the folder with the servers."""
    own = [one for one in found if _may_be_of(one.manifest, job)]
    return CheckpointRow(step=own[-1].manifest.step, path=own[-1].path) if own else None


def _may_be_of(saved: Manifest, job: PlacedJob) -> bool:
    """By what the plan says of a job. Ranks ask for more before they go on from a checkpoint: they
    know the model's tensors, too."""
    said = (saved.model, saved.batch, saved.seed, saved.optimizer)
    return said == (job.model, job.batch, job.seed, job.optimizer.name)


def _last_reported(folder: Path, journal: Journal, plan_name: str) -> CheckpointRow | None:
    for run in reversed(journal.runs(plan_name)):
        try:
            row = RunReport.model_validate_json(run.report).checkpoint
        except ValidationError:  # Another version of Placewire wrote the report.
            continue
        if row is not None and Path(row.path).parent == folder:
            return row
    return None
