"""Asks on servers, before anything changes, whether ranks would refuse a folder of checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from placewire.controller.errors import JobFailed, LaunchFailed, UsageError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.job.contract.checkpoint_look import CheckpointProblem, CheckpointQuestion

_PROGRAM = ("-m", "placewire.job.contract.checkpoint_look")
_MOST_AT_ONCE = 16


async def checkpoint_problems(
    plan: Plan, launcher: Launcher, servers: Sequence[str]
) -> Mapping[str, UsageError | JobFailed]:
    """By server, in this order, UsageError where ranks would refuse the folder, and JobFailed where
    no program can look at it. All servers are heard. Empty where the job saves nothing, and where
    programs do not run on the servers: a folder of theirs is not here."""
    if not isinstance(plan.job, PlacedJob) or plan.job.checkpoint is None:
        return {}
    if not launcher.on_servers:
        return {}
    job, checkpoint = plan.job, plan.job.checkpoint
    asked = CheckpointQuestion(
        folder=checkpoint.folder,
        resume=checkpoint.resume,
        steps=job.steps,
        model=job.model,
        batch=job.batch,
        seed=job.seed,
        optimizer=job.optimizer.name,
    )
    turn = asyncio.Semaphore(_MOST_AT_ONCE)

    async def problem(server: str) -> UsageError | JobFailed | None:
        async with turn:
            try:
                found = await _problem_on(server, asked, launcher)
            except JobFailed as failed:
                return failed
        if found is None:
            return None
        return UsageError(found.what, where=server, remedy=found.remedy)

    answers = await asyncio.gather(*map(problem, servers))
    return {s: one for s, one in zip(servers, answers, strict=True) if one is not None}


async def _problem_on(
    server: str, asked: CheckpointQuestion, launcher: Launcher
) -> CheckpointProblem | None:
    ended = await launcher.run(
        server, _PROGRAM, given=asked.model_dump_json().encode(), on_line=lambda line: None
    )
    # The interpreter may print lines of its own before, as from a sitecustomize.
    answer = ended.output.strip().rpartition(b"\n")[2]
    try:
        if ended.status == 0:
            return None if answer == b"null" else CheckpointProblem.model_validate_json(answer)
        told = ended.tail[-1] if ended.tail else f"exit {ended.status}"
    except ValidationError:
        told = repr(answer[-200:])
    raise LaunchFailed(
        f"job.checkpoint.folder cannot be looked at: {told}",
        where=server,
        remedy="look at job.python and job.workdir on that server, and at what the folder is "
        "mounted from",
    )
