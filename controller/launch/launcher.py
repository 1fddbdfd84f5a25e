"""What starting a rank means, whatever way servers are reached."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from placewire.controller.errors import UsageError
from placewire.controller.launch.programs import Ended, run_to_end
from placewire.job.contract.specification import Hold, ProgramSpec

# What python runs on a server: a rank, and what measures operators there.
RANK_PROGRAM = ("-m", "placewire.job")
PROFILE_PROGRAM = ("-m", "placewire.optimizer.commands.profile")


class RankProcess(Protocol):
    """One started rank."""

    rank: int
    server: str

    def output(self) -> AsyncIterator[bytes]:
        """Standard output, line by line, to its end."""

    def errors(self) -> AsyncIterator[bytes]:
        """Standard error, line by line, to its end."""

    def tell(self, hold: Hold) -> None:
        """On its standard input. Nothing if it has ended."""

    async def wait(self) -> int:
        """The exit status; -N where signal N ended it."""

    def terminate(self) -> None:
        """Asks the rank and all that it started to end. Nothing if it has ended."""

    def kill(self) -> None:
        """Ends the rank and all that it started. Nothing if it has ended."""


@dataclass(frozen=True)
class LeftRank:
    """A rank, or another program of ours, that runs, whoever started it. seconds: for how long."""

    server: str
    pid: int
    seconds: float


class Starter(Protocol):
    """What starts ranks."""

    async def start(self, spec: ProgramSpec) -> RankProcess:
        """On the server that spec.device names. A rank outlives this process, for as long as it was
        told that it may."""


class Launcher(Starter, Protocol):
    """on_servers: whether what it runs does run on the plan's servers, or on this machine."""

    on_servers: bool

    def require_ready(self) -> None:
        """Raises PlacewireError where no rank could be started, before anything is changed."""

    async def run(
        self,
        server: str,
        words: Sequence[str],
        *,
        given: bytes = b"",
        on_line: Callable[[str], None],
    ) -> Ended:
        """`python words` on that server, where and as whom ranks run, to its end. given: its
        standard input; on_line: told each line of its standard error. Raises PlacewireError where
        it cannot be started; whatever status it ends with is the caller's to judge."""

    def busy(self, server: str) -> tuple[LeftRank, ...]:
        """Ranks and profiles on that server that would disturb a measurement there."""

    def left(self) -> tuple[LeftRank, ...]:
        """Ranks on the plan's servers that this process did not start."""

    def end_left(self, ranks: Sequence[LeftRank]) -> None:
        """Raises JobFailed where one does not end."""


class NoLauncher:
    """Where there is no way to start ranks on the plan's servers. Other programs are run here.

    workdir, environment: of these; default: this process's.
    """

    on_servers = False

    def __init__(
        self, *, workdir: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._workdir, self._environment = workdir, dict(environment or {})

    def require_ready(self) -> NoReturn:
        raise UsageError(
            "there is no way yet to start ranks on these servers",
            remedy="say in the plan how (`launch: {kind: ssh}`); `controller apply --network-only` "
            "shapes and measures their network alone; `controller lab up PLAN` makes a cluster on "
            "this machine that runs the job too",
        )

    async def start(self, spec: ProgramSpec) -> NoReturn:
        self.require_ready()

    async def run(
        self,
        server: str,
        words: Sequence[str],
        *,
        given: bytes = b"",
        on_line: Callable[[str], None],
    ) -> Ended:
        environment = {**os.environ, **self._environment}
        return await run_to_end(
            [sys.executable, *words],
            environment=environment,
            workdir=self._workdir,
            given=given,
            on_line=on_line,
        )

    def busy(self, server: str) -> tuple[LeftRank, ...]:
        return ()

    def left(self) -> tuple[LeftRank, ...]:
        return ()

    def end_left(self, ranks: Sequence[LeftRank]) -> None:
        return
