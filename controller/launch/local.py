"""Starts a rank as a process of this machine."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from placewire.controller.errors import JobFailed
from placewire.controller.launch.lines import lines_of
from placewire.controller.launch.programs import ask_to_end, begin, close_pipes, exited, kill
from placewire.job.contract.specification import Hold, ProgramSpec
from placewire.optimizer.device_names import server_of


async def start_rank(
    spec: ProgramSpec,
    command: Callable[[str], Sequence[str]],
    *,
    workdir: Path,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
) -> LocalRank:
    """command: what to run, given the path of the rank's specification. pass_fds: further open
    files that it needs. Raises JobFailed."""
    server = server_of(spec.device)
    with file_in_memory(f"rank-{spec.rank}.json", spec.model_dump_json().encode()) as descriptor:
        argv = command(f"/dev/fd/{descriptor}")
        try:
            process = await begin(
                argv, environment=environment, workdir=workdir, pass_fds=[descriptor, *pass_fds]
            )
        except OSError as error:
            raise not_started(f"rank {spec.rank}", server, argv, error) from error
    return LocalRank(spec.rank, server, process)


@contextmanager
def file_in_memory(name: str, content: bytes) -> Iterator[int]:
    """Yields the descriptor of a file that nobody else can name and that is gone however this
    process ends."""
    descriptor = os.memfd_create(name)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield descriptor
    finally:
        os.close(descriptor)


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
        return lines_of(self._process.stderr, redraws=True)

    def tell(self, hold: Hold) -> None:
        stream = self._process.stdin
        if stream is not None and not stream.is_closing():
            stream.write(hold.model_dump_json().encode() + b"\n")

    async def wait(self) -> int:
        return await exited(self._process)

    def terminate(self) -> None:
        ask_to_end(self._process)

    def kill(self) -> None:
        kill(self._process)

    def close(self) -> None:
        close_pipes(self._process)
