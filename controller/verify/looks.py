"""Asks servers, before anything changes, by a program that looks there, whether ranks would refuse
what they are to use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ValidationError

from placewire.controller.errors import JobFailed, LaunchFailed, UsageError
from placewire.controller.launch.launcher import Launcher
from placewire.frozen import Frozen
from placewire.job.contract.look import Answer

_MOST_AT_ONCE = 16

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class Look(Generic[A]):
    """program: a module. asked: its standard input. subject: the YAML path of what it looks at."""

    program: str
    asked: Frozen
    answer: type[A]
    subject: str


async def answers_of(
    look: Look[A], launcher: Launcher, servers: Sequence[str]
) -> Mapping[str, A | JobFailed]:
    """By server, in this order: all are heard. JobFailed where no program can look. Empty where
    programs do not run on the servers: what is theirs is not here."""
    if not launcher.on_servers:
        return {}
    turn = asyncio.Semaphore(_MOST_AT_ONCE)

    async def answer(server: str) -> A | JobFailed:
        async with turn:
            try:
                return await _answer_of(server, look, launcher)
            except JobFailed as failed:
                return failed

    return dict(zip(servers, await asyncio.gather(*map(answer, servers)), strict=True))


def problems_among(answers: Mapping[str, A | JobFailed]) -> dict[str, UsageError | JobFailed]:
    """By server: UsageError where ranks would refuse it, JobFailed where no program can look."""
    problems: dict[str, UsageError | JobFailed] = {}
    for server, told in answers.items():
        if isinstance(told, JobFailed):
            problems[server] = told
        elif (found := told.problem) is not None:
            problems[server] = UsageError(found.what, where=server, remedy=found.remedy)
    return problems


async def _answer_of(server: str, look: Look[A], launcher: Launcher) -> A:
    ended = await launcher.run(
        server, ("-m", look.program), given=look.asked.model_dump_json().encode(),
        on_line=lambda line: None,
    )  # fmt: skip
    # The interpreter may print lines of its own before, as from a sitecustomize.
    answer = ended.output.strip().rpartition(b"\n")[2]
    try:
        if ended.status == 0:
            return look.answer.model_validate_json(answer)
        told = ended.tail[-1] if ended.tail else f"exit {ended.status}"
    except ValidationError:
        told = repr(answer[-200:])
    raise LaunchFailed(
        f"{look.subject} cannot be looked at: {told}",
        where=server,
        remedy="look at job.python and job.workdir on that server, and at what this path is "
        "mounted from",
    )
