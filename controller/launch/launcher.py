"""What starting a rank means, whatever way servers are reached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn, Protocol

from agent.contract.job import RankSpec
from controller.errors import UsageError


class RankProcess(Protocol):
    """One started rank."""

    rank: int
    server: str

    def output(self) -> AsyncIterator[bytes]:
        """Standard output, line by line, to its end."""

    def errors(self) -> AsyncIterator[bytes]:
        """Standard error, line by line, to its end."""

    async def wait(self) -> int:
        """The exit status; -N where signal N ended it."""

    def terminate(self) -> None:
        """Asks the rank and all that it started to end. Nothing if it has ended."""

    def kill(self) -> None:
        """Ends the rank and all that it started. Nothing if it has ended."""


class Launcher(Protocol):
    def require_ready(self) -> None:
        """Raises PlacewireError where no rank could be started, before anything is changed."""

    async def start(self, spec: RankSpec) -> RankProcess:
        """On the server that spec.device names. A rank does not outlive this process."""


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


def server_of(spec: RankSpec) -> str:
    return spec.device.split("/")[0]
