"""Asks on servers, before anything changes, what ranks would make of a folder of checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from placewire.controller.errors import JobFailed, LaunchFailed, UsageError
from placewire.controller.few_names import few_names
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob
from placewire.job.contract.checkpoint_look import CheckpointAnswer, CheckpointQuestion
from placewire.job.contract.job_identity import JobIdentity
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.halves import forward_hash

_PROGRAM = ("-m", "placewire.job.contract.checkpoint_look")
_MOST_AT_ONCE = 16


@dataclass(frozen=True)
class CheckpointOutlook:
    """By server, in the order in which they were named. problems: UsageError where ranks would
    refuse the folder, JobFailed where no program can look at it. begins: with which step the job
    begins, a sentence."""

    problems: Mapping[str, UsageError | JobFailed]
    begins: Mapping[str, str]

    def beginnings(self) -> Mapping[str, str]:
        """The servers that say it, by what they say: one entry where all see the same folder."""
        alike: dict[str, list[str]] = {}
        for server, told in self.begins.items():
            alike.setdefault(told, []).append(server)
        return {told: few_names(some) for told, some in alike.items()}


def planned_identity(job: PlacedJob) -> JobIdentity:
    """What the plan alone says of its job."""
    return JobIdentity(
        model=job.model, batch=job.batch, seed=job.seed, optimizer=job.optimizer.name
    )


def captured_identity(job: PlacedJob, graph_file: Path) -> JobIdentity:
    """job: as ranks would run it. graph_file: its step's. The tensors of the model are not there:
    only ranks have them. Nor is what computes the loss, in a file of a graph that notes no loss."""
    graph = load_graph(graph_file)
    computation = forward_hash(graph)
    known = {
        "structure_hash": graph.structure_hash if computation else None,
        "computation_hash": computation,
        "accumulate": int(job.accumulate),
        "shards": int(job.shards),
    }
    return planned_identity(job).model_copy(update=known)


async def checkpoint_outlook(
    job: PlacedJob, identity: JobIdentity, launcher: Launcher, servers: Sequence[str]
) -> CheckpointOutlook:
    """All servers are heard. Empty where the job saves nothing, and where programs do not run on
    the servers: a folder of theirs is not here."""
    checkpoint = job.checkpoint
    if checkpoint is None or not launcher.on_servers:
        return CheckpointOutlook({}, {})
    asked = CheckpointQuestion(
        folder=checkpoint.folder, resume=checkpoint.resume, steps=job.steps, job=identity
    )
    turn = asyncio.Semaphore(_MOST_AT_ONCE)

    async def answer(server: str) -> CheckpointAnswer | JobFailed:
        async with turn:
            try:
                return await _answer_of(server, asked, launcher)
            except JobFailed as failed:
                return failed

    answers = await asyncio.gather(*map(answer, servers))
    problems: dict[str, UsageError | JobFailed] = {}
    begins: dict[str, str] = {}
    for server, told in zip(servers, answers, strict=True):
        if isinstance(told, JobFailed):
            problems[server] = told
        elif (found := told.problem) is not None:
            problems[server] = UsageError(found.what, where=server, remedy=found.remedy)
        else:
            begins[server] = told.begins
    return CheckpointOutlook(problems, begins)


async def _answer_of(
    server: str, asked: CheckpointQuestion, launcher: Launcher
) -> CheckpointAnswer:
    ended = await launcher.run(
        server, _PROGRAM, given=asked.model_dump_json().encode(), on_line=lambda line: None
    )
    # The interpreter may print lines of its own before, as from a sitecustomize.
    answer = ended.output.strip().rpartition(b"\n")[2]
    try:
        if ended.status == 0:
            return CheckpointAnswer.model_validate_json(answer)
        told = ended.tail[-1] if ended.tail else f"exit {ended.status}"
    except ValidationError:
        told = repr(answer[-200:])
    raise LaunchFailed(
        f"job.checkpoint.folder cannot be looked at: {told}",
        where=server,
        remedy="look at job.python and job.workdir on that server, and at what the folder is "
        "mounted from",
    )
