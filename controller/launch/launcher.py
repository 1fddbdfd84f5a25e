"""What starting a rank means, whatever way servers are reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from agent.contract.job import Hold, RankSpec
from controller.errors import UsageError


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
    """A rank that runs, whoever started it. seconds: for how long."""

    server: str
    pid: int
    seconds: float


class Launcher(Protocol):
    def require_ready(self) -> None:
        """Raises PlacewireError where no rank could be started, before anything is changed."""

    async def start(self, spec: RankSpec) -> RankProcess:
        """On the server that spec.device names. A rank outlives this process, for as long as it was
        told that it may."""

    def left(self) -> tuple[LeftRank, ...]:
        """Ranks on the plan's servers that this process did not start."""

    def end_left(self, ranks: Sequence[LeftRank]) -> None:
        """Raises JobFailed where one does not end."""


class NoLauncher:
    """Where there is no way to start ranks on the plan's servers."""

    def require_ready(self) -> NoReturn:
        raise UsageError(
            "there is no way yet to start ranks on these servers",
            remedy="`controller apply --network-only` shapes and measures their network; "
            "`controller lab up PLAN` makes a cluster on this machine that runs the job too",
        )

    async def start(self, spec: RankSpec) -> NoReturn:
        self.require_ready()

    def left(self) -> tuple[LeftRank, ...]:
        return ()

    def end_left(self, ranks: Sequence[LeftRank]) -> None:
        return


def server_of(spec: RankSpec) -> str:
    return spec.device.split("/")[0]
