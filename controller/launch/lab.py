"""Ranks in a lab: on their server's network, without privileges."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import placewire
from placewire.controller.errors import JobFailed, UsageError
from placewire.controller.lab import Lab
from placewire.controller.lab.processes import end, programs_inside, running_seconds
from placewire.controller.launch.launcher import PROFILE_PROGRAM, RANK_PROGRAM, LeftRank
from placewire.controller.launch.local import LocalRank, start_rank
from placewire.controller.launch.programs import Ended, run_to_end
from placewire.job.contract.specification import ProgramSpec
from placewire.optimizer.device_names import server_of

# Where an interpreter of the user's own finds the rank program.
_IMPORT_ROOT = Path(placewire.__file__).resolve().parents[1]
_WITHOUT_PRIVILEGES = (
    "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all",
)  # fmt: skip


class LabLauncher:
    """python: interpreter of the ranks (default: this one); workdir: where they run and import the
    user's model from (default: here); environment: variables for them; program: a rank's, what
    python runs.

    A rank, like whatever else is run on a server, runs as the user behind sudo, if there is one, so
    that what that user can read is what it can read; otherwise as root without any capability.
    """

    on_servers = True

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

    async def start(self, spec: ProgramSpec) -> LocalRank:
        rank = await start_rank(
            spec,
            lambda file: self._command(server_of(spec.device), [*self._program, file]),
            workdir=self._workdir,
            environment=self._program_environment(),
        )
        self._started.add(rank.pid)
        return rank

    async def run(
        self,
        server: str,
        words: Sequence[str],
        *,
        given: bytes = b"",
        on_line: Callable[[str], None],
    ) -> Ended:
        argv = self._command(server, words)
        try:
            return await run_to_end(
                argv,
                environment=self._program_environment(),
                workdir=self._workdir,
                given=given,
                on_line=on_line,
            )
        except OSError as error:
            raise JobFailed(
                f"a program could not be started: {error.strerror}: {shlex.join(argv)}",
                where=server,
                remedy="look at job.python and job.workdir",
            ) from error

    def left(self) -> tuple[LeftRank, ...]:
        return tuple(
            left
            for server in self._lab.record.servers
            for left in self._running(server.name, self._program)
        )

    def busy(self, server: str) -> tuple[LeftRank, ...]:
        programs = (self._program, PROFILE_PROGRAM)
        return tuple(left for program in programs for left in self._running(server, program))

    def _running(self, server: str, program: Sequence[str]) -> list[LeftRank]:
        inside = programs_inside(self._lab.record, self._lab.namespace(server), program)
        return [
            LeftRank(server, pid, running_seconds(pid))
            for pid in inside
            if pid not in self._started
        ]

    def end_left(self, ranks: Sequence[LeftRank]) -> None:
        if remaining := end(rank.pid for rank in ranks):
            raise JobFailed(
                f"ranks of an earlier job do not end: pids {', '.join(map(str, remaining))}",
                where=", ".join(sorted({r.server for r in ranks if r.pid in remaining})),
                remedy="end them by hand, then try again",
            )

    def _command(self, server: str, words: Sequence[str]) -> list[str]:
        options = [*_WITHOUT_PRIVILEGES, *_user_options()]
        return self._lab.inside_server(server, ["setpriv", *options, "--", self._python, *words])

    def _program_environment(self) -> dict[str, str]:
        environment = {**self._lab.environment, "PYTHONUNBUFFERED": "1", **self._environment}
        paths = [str(self._workdir), str(_IMPORT_ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return environment


def _user_options() -> list[str]:
    user, group = os.environ.get("SUDO_UID", "0"), os.environ.get("SUDO_GID", "0")
    return [] if user == "0" else [f"--reuid={user}", f"--regid={group}", "--init-groups"]
