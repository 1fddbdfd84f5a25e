"""The interface to launchers, which start ranks and other programs on servers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from placewire.controller.errors import JobFailed, LaunchFailed, UsageError
from placewire.controller.launch.programs import Ended, OnLine, run_to_end
from placewire.job.contract.specification import Hold, ProgramSpec

# What python runs on a server: a rank, and the program that measures operators.
RANK_PROGRAM = ("-m", "placewire.job")
# Goes before RANK_PROGRAM where that starts a script: then it imports nothing of the user's, who
# may have other versions of what it needs on PYTHONPATH, or a types.py where it runs.
ISOLATED = ("-I",)
PROFILE_PROGRAM = ("-m", "placewire.optimizer.commands.profile")


class RankProcess(Protocol):
    """One started rank. Once it has ended, `tell`, `terminate` and `kill` do nothing."""

    rank: int
    server: str

    def output(self) -> AsyncIterator[bytes]:
        """Standard output, line by line, to its end."""

    def errors(self) -> AsyncIterator[bytes]:
        """Standard error, line by line, to its end."""

    def tell(self, hold: Hold) -> None:
        """Writes to the rank's standard input."""

    async def wait(self) -> int:
        """Returns the exit status; -N where signal N ended the rank."""

    def terminate(self) -> None:
        """Asks the rank and all that it started to end; of a script the program that started it,
        which then asks the script's processes, once."""

    def kill(self) -> None:
        """Ends the rank and all that it started."""

    def close(self) -> None:
        """To be called last: nothing of the rank's is read any more, though a process that it left
        behind may hold the other ends of its pipes."""


@dataclass(frozen=True)
class RunningProgram:
    """A running rank or other program of Placewire. pid: of its main process now. seconds: how long
    it has run. run: what its launcher knows it by, also when another process is its main one. plan:
    the name of the plan that it is of; "" where that is not known."""

    server: str
    pid: int
    seconds: float
    run: str = ""
    plan: str = ""


def not_ended(
    pids: Mapping[str, Sequence[int]], problems: Sequence[LaunchFailed] = ()
) -> JobFailed:
    """pids: by server, of the processes that remain. problems: of servers that were not heard."""
    each = (f"{server} (pid {', '.join(map(str, some))})" for server, some in pids.items())
    told = "".join(f"; {one.where}: {one.what}" for one in problems)
    return JobFailed(
        f"ranks of an earlier job do not end: {', '.join(each)}{told}",
        where=", ".join([*pids, *(one.where for one in problems)]),
        remedy="end them by hand, then try again",
    )


def not_looked_at(
    problems: Sequence[LaunchFailed], found: Sequence[RunningProgram]
) -> LaunchFailed:
    """problems: one for each server that could not be looked at. found: on the other servers."""
    if len(problems) == 1:
        what, where, remedy = problems[0].what, problems[0].where, problems[0].remedy
    else:
        what = "; ".join(f"{one.where}: {one.what}" for one in problems)
        where = ", ".join(one.where for one in problems)
        remedy = "; ".join(dict.fromkeys(one.remedy for one in problems))
    return LaunchFailed(what, where=where, remedy=remedy, found=found)


class Starter(Protocol):
    async def start(self, spec: ProgramSpec) -> RankProcess:
        """Starts a rank on spec.device's server. The rank outlives this process for as long as it
        was last told that it may."""


class Launcher(Starter, Protocol):
    """on_servers: whether programs run on the plan's servers, rather than on this machine."""

    on_servers: bool

    def require_ready(self) -> None:
        """Raises PlacewireError where no rank could be started. To be called before any change."""

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        """Runs `python words` on that server to its end, as the same user and in the same folder as
        ranks. given: its standard input; on_line: gets each line of its standard error. Raises
        PlacewireError where it cannot be started; the caller judges the status it ends with."""

    async def read(self, server: str, source: bytes) -> Ended:
        """Runs a program that only reads, given as its text, by that server's own `python3 -I`. It
        has more rights than ranks where the launcher has more. Raises PlacewireError where it
        cannot be started; the caller judges the status it ends with."""

    def busy(self, server: str) -> tuple[RunningProgram, ...]:
        """Returns ranks and profiles on that server that would disturb a measurement there."""

    def left(self) -> tuple[RunningProgram, ...]:
        """Returns the ranks on the plan's servers that this process did not start, of whatever
        plan. Raises LaunchFailed, with those that were found, where a server cannot be looked
        at or does not answer in time."""

    def end_left(self, ranks: Sequence[RunningProgram]) -> None:
        """Ends these ranks, as far as they are this plan's. Raises JobFailed where one does not
        end, and LaunchFailed where a server cannot be asked; the others are ended."""


class NoLauncher:
    """Stands in where ranks cannot be started on the plan's servers. Runs other programs here.

    workdir, environment: for these programs; default: this process's.
    """

    on_servers = False

    def __init__(
        self, *, workdir: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._workdir, self._environment = workdir, dict(environment or {})

    def require_ready(self) -> NoReturn:
        raise UsageError(
            "the plan does not say how to start ranks on these servers",
            remedy="add `launch: {kind: ssh, user: NAME}` to the plan; or give --network-only: "
            "`apply` then shapes and measures the network alone; or `controller lab up PLAN`, "
            "which makes a cluster on this machine that runs the job too",
        )

    async def start(self, spec: ProgramSpec) -> NoReturn:
        self.require_ready()

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        return await run_to_end(
            [sys.executable, *words],
            environment={**os.environ, **self._environment},
            workdir=self._workdir,
            given=given,
            on_line=on_line,
        )

    async def read(self, server: str, source: bytes) -> NoReturn:
        raise UsageError(
            "the plan does not say how to reach its servers",
            where=server,
            remedy="add `launch: {kind: ssh, user: NAME}` to the plan",
        )

    def busy(self, server: str) -> tuple[RunningProgram, ...]:
        return ()

    def left(self) -> tuple[RunningProgram, ...]:
        return ()

    def end_left(self, ranks: Sequence[RunningProgram]) -> None:
        return
