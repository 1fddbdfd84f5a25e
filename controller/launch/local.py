"""A rank that is a process of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from placewire.controller.errors import JobFailed
from placewire.controller.launch.programs import LONGEST_LINE_BYTES, lines_of
from placewire.job.contract.specification import Hold, ProgramSpec
from placewire.optimizer.device_names import server_of


async def start_rank(
    spec: ProgramSpec,
    command: Callable[[str], Sequence[str]],
    *,
    workdir: Path,
    environment: Mapping[str, str],
) -> LocalRank:
    """command: given where the specification can be read, what to run. Raises JobFailed."""
    # The specification is in memory: nothing to remove, however this process ends.
    descriptor = os.memfd_create(f"rank-{spec.rank}.json")
    try:
        os.write(descriptor, spec.model_dump_json().encode())
        argv = command(f"/dev/fd/{descriptor}")
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE_BYTES,
            cwd=workdir,
            env=dict(environment),
            pass_fds=(descriptor,),
            start_new_session=True,
        )
    except OSError as error:
        raise JobFailed(
            f"rank {spec.rank} could not be started: {error.strerror}: {shlex.join(argv)}",
            where=server_of(spec.device),
            remedy="look at job.python and job.workdir",
        ) from error
    finally:
        os.close(descriptor)
    return LocalRank(spec.rank, server_of(spec.device), process)


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
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """To the rank's whole session, which it leads. Once it was waited for its pid may be
        another's, so that only a living rank's is used."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
