"""Ranks in a lab: on their server's network, without privileges."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from agent.contract.job import Hold, RankSpec
from controller.errors import JobFailed, UsageError
from controller.lab import Lab
from controller.lab.processes import end, programs_inside, running_seconds
from controller.launch.launcher import LeftRank, server_of

RANK_PROGRAM = ("-m", "agent.job")
_PROJECT = Path(__file__).resolve().parents[2]
# A step event is a few hundred bytes; a user's own print may be anything.
_LONGEST_LINE_BYTES = 2**20
_WITHOUT_PRIVILEGES = (
    "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all",
)  # fmt: skip


class LabLauncher:
    """python: interpreter of the ranks (default: this one); workdir: where they run and import the
    user's model from (default: here); environment: variables for them; program: what python runs.

    A rank runs as the user behind sudo, if there is one, so that what that user can read is what
    the rank can read; otherwise as root without any capability.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        python: str | None = None,
        workdir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = RANK_PROGRAM,
    ) -> None:
        self._lab = lab
        self._workdir = (workdir or Path.cwd()).resolve()
        self._python = python or sys.executable
        self._environment = dict(environment or {})
        self._program = tuple(program)
        self._started: set[int] = set()

    def require_ready(self) -> None:
        if not self._workdir.is_dir():
            raise UsageError("job.workdir is no folder", where=str(self._workdir))

    async def start(self, spec: RankSpec) -> LocalRank:
        server = server_of(spec)
        # The specification is in memory: nothing to remove, however this process ends.
        descriptor = os.memfd_create(f"rank-{spec.rank}.json")
        try:
            os.write(descriptor, spec.model_dump_json().encode())
            argv = self._lab.inside_server(
                server,
                ["setpriv", *_WITHOUT_PRIVILEGES, *_user_options(), "--",
                 self._python, *self._program, f"/dev/fd/{descriptor}"],
            )  # fmt: skip
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE_BYTES,
                cwd=self._workdir,
                env=self._rank_environment(),
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        except OSError as error:
            raise JobFailed(
                f"rank {spec.rank} could not be started: {error.strerror}: {shlex.join(argv)}",
                where=server,
                remedy="look at job.python and job.workdir",
            ) from error
        finally:
            os.close(descriptor)
        self._started.add(process.pid)
        return LocalRank(spec.rank, server, process)

    def left(self) -> tuple[LeftRank, ...]:
        return tuple(
            LeftRank(server.name, pid, running_seconds(pid))
            for server in self._lab.record.servers
            for pid in programs_inside(self._lab.record, server.namespace, self._program)
            if pid not in self._started
        )

    def end_left(self, ranks: Sequence[LeftRank]) -> None:
        if remaining := end(rank.pid for rank in ranks):
            raise JobFailed(
                f"ranks of an earlier job do not end: pids {', '.join(map(str, remaining))}",
                where=", ".join(sorted({r.server for r in ranks if r.pid in remaining})),
                remedy="end them by hand, then try again",
            )

    def _rank_environment(self) -> dict[str, str]:
        environment = {**self._lab.environment, "PYTHONUNBUFFERED": "1", **self._environment}
        paths = [str(self._workdir), str(_PROJECT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return environment


class LocalRank:
    def __init__(self, rank: int, server: str, process: asyncio.subprocess.Process) -> None:
        self.rank, self.server = rank, server
        self._process = process

    def output(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        return _lines(self._process.stdout)

    def errors(self) -> AsyncIterator[bytes]:
        assert self._process.stderr is not None
        return _lines(self._process.stderr)

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


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the limit: what was read of it is dropped
            continue
        if not line:
            return
        yield line


def _user_options() -> list[str]:
    user, group = os.environ.get("SUDO_UID", "0"), os.environ.get("SUDO_GID", "0")
    return [] if user == "0" else [f"--reuid={user}", f"--regid={group}", "--init-groups"]
