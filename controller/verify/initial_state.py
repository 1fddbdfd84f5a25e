"""Asks on servers, before anything changes, whether ranks could read the file they begin from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.controller.errors import JobFailed, UsageError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob
from placewire.controller.verify.checkpoint_folder import CheckpointOutlook
from placewire.controller.verify.looks import Look, answers_of, problems_among
from placewire.job.contract.look import Answer
from placewire.job.contract.specification import StateSpec

_PROGRAM = "placewire.job.placed.initial_state_look"


async def initial_state_problems(
    job: PlacedJob, checkpoints: CheckpointOutlook, launcher: Launcher, servers: Sequence[str]
) -> Mapping[str, UsageError | JobFailed]:
    """By server: UsageError where ranks would refuse the file, JobFailed where no program can look
    at it. Nobody looks unless the job begins at step 0: else no rank reads the file."""
    if job.state is None or (job.checkpoint is not None and not checkpoints.is_of_step_0):
        return {}
    asked = StateSpec(**job.state.model_dump())
    look = Look(_PROGRAM, asked, Answer, "job.state.file")
    return problems_among(await answers_of(look, launcher, servers))
