"""Asks on a plan's servers, before anything changes, whether ranks would refuse checkpoints."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.job.contract.checkpoint_look import CheckpointProblem, CheckpointQuestion

_PROGRAM = ("-m", "placewire.job.contract.checkpoint_look")
_MOST_AT_ONCE = 16


async def require_usable_checkpoints(plan: Plan, launcher: Launcher) -> None:
    """Raises UsageError, which names the server, where ranks would refuse the folder; LaunchFailed
    where no program can look at it."""
    if not isinstance(plan.job, PlacedJob) or plan.job.checkpoint is None:
        return
    if not launcher.on_servers:  # The folder here is not the servers'.
        return
    job, checkpoint = plan.job, plan.job.checkpoint
    asked = CheckpointQuestion(
        folder=checkpoint.folder,
        resume=checkpoint.resume,
        steps=job.steps,
        batch=job.batch,
        seed=job.seed,
    )
    turn = asyncio.Semaphore(_MOST_AT_ONCE)

    async def problem(server: str) -> CheckpointProblem | None:
        async with turn:
            return await _problem_on(server, asked, launcher)

    servers = [server.name for server in plan.cluster.servers]
    found = await asyncio.gather(*map(problem, servers))
    for server, one in zip(servers, found, strict=True):
        if one is not None:
            raise UsageError(one.what, where=server, remedy=one.remedy)


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
        remedy="look at job.python and job.workdir on that server",
    )
