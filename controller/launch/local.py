"""Starts a rank as a process of this machine."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from placewire.controller.errors import JobFailed
from placewire.controller.launch.programs import begin, lines_of, signal_session
from placewire.job.contract.specification import Hold, ProgramSpec
from placewire.optimizer.device_names import server_of


async def start_rank(
    spec: ProgramSpec,
    command: Callable[[str], Sequence[str]],
    *,
    workdir: Path,
    environment: Mapping[str, str],
) -> LocalRank:
    """command: what to run, given the path of the rank's specification. Raises JobFailed."""
    # The specification is a file in memory, so that none is left, however this process ends.
    descriptor = os.memfd_create(f"rank-{spec.rank}.json")
    server = server_of(spec.device)
    try:
        argv = command(f"/dev/fd/{descriptor}")
        os.write(descriptor, spec.model_dump_json().encode())
        process = await begin(argv, environment=environment, workdir=workdir, pass_fds=[descriptor])
    except OSError as error:
        raise not_started(f"rank {spec.rank}", server, argv, error) from error
    finally:
        os.close(descriptor)
    return LocalRank(spec.rank, server, process)


def not_started(what: str, server: str, argv: Sequence[str], error: OSError) -> JobFailed:
    return JobFailed(
        f"{what} could not be started: {error.strerror}: {shlex.join(argv)}",
        where=server,
        remedy="look at job.python and job.workdir",
    )


class LocalRank:
    def __init__(self, rank: int, server: str, process: asyncio.subprocess.Process) -> None:
        self.rank, self.server = rank, server
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def output(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        return lines_of(self._process.stdout)

    def errors(self) -> AsyncIterator[bytes]:
        assert self._process.stderr is not None
        return lines_of(self._process.stderr)

    def tell(self, hold: Hold) -> None:
        stream = self._process.stdin
        if stream is not None and not stream.is_closing():
            stream.write(hold.model_dump_json().encode() + b"\n")

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        signal_session(self._process, signal.SIGTERM)

    def kill(self) -> None:
        signal_session(self._process, signal.SIGKILL)
