"""Starts ranks in a lab: on their server's network, without privileges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import placewire
from placewire.controller.errors import UsageError
from placewire.controller.lab import Lab
from placewire.controller.lab.processes import (
    end,
    programs_inside,
    running_seconds,
    runs_a_script,
)
from placewire.controller.lab.switches import run_directory
from placewire.controller.launch.launcher import (
    PROFILE_PROGRAM,
    RANK_PROGRAM,
    RunningProgram,
    not_ended,
)
from placewire.controller.launch.local import LocalRank, file_in_memory, not_started, start_rank
from placewire.controller.launch.programs import BECOME, Ended, OnLine, described, run_to_end
from placewire.controller.launch.script_look import PROGRAM, problem_in, question
from placewire.job.contract.specification import SCRIPT_GONE_SECONDS, ProgramSpec, ScriptSpec
from placewire.optimizer.device_names import server_of

# The folder from which an interpreter of the user's own imports the rank program.
_IMPORT_ROOT = Path(placewire.__file__).resolve().parents[1]
# Before a program that starts a script: that imports nothing of the user's, as on servers, where
# `-I` says so. Here it would not find _IMPORT_ROOT then.
_OURS_ALONE = ("-P", "-s")
_WITHOUT_PRIVILEGES = (
    "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all",
)  # fmt: skip


class LabLauncher:
    """python: the ranks' interpreter (default: this one); script and script_python: a script, and
    the words of an interpreter of its own, if any; workdir: the folder where ranks run and import
    the user's model from (default: this one); environment: variables for ranks; program: what
    python runs as a rank.

    Ranks and other programs run as the user behind sudo, if there is one, so that they can read
    just what that user can; otherwise as root without any capability.
    """

    on_servers = True

    def __init__(
        self,
        lab: Lab,
        *,
        python: str | None = None,
        script: str = "",
        script_python: Sequence[str] = (),
        workdir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = RANK_PROGRAM,
    ) -> None:
        self._lab = lab
        self._workdir = (workdir or Path.cwd()).resolve()
        self._python = python or sys.executable
        self._script, self._script_python = script, tuple(script_python)
        self._environment = dict(environment or {})
        self._program = tuple(program)
        self._started: set[int] = set()

    def require_ready(self) -> None:
        if not self._workdir.is_dir():
            raise UsageError("job.workdir is no folder", where=str(self._workdir))
        path = self._environment.get("PATH", self._lab.environment.get("PATH"))
        # A relative path is one from the folder where ranks run.
        program = self._workdir / self._python if "/" in self._python else self._python
        if shutil.which(program, path=path) is None:
            raise UsageError(
                f"{self._python!r} is not found", where="job.python", remedy="give an interpreter"
            )
        if self._script_python and (
            wrong := problem_in(self._look(), self._script, self._script_python)
        ):
            raise UsageError(wrong[0], where="job.python", remedy=wrong[1])

    def _look(self) -> object:
        """Returns the answer of the script's interpreter, run as the script will be."""
        asked = question(self._script, self._script_python, self._environment)
        done = subprocess.run(
            [*self._as_the_user(), sys.executable, "-I", "-c", PROGRAM],
            cwd=self._workdir, env=self._helpers_environment(), input=json.dumps(asked),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip()}

    async def start(self, spec: ProgramSpec) -> LocalRank:
        server = server_of(spec.device)
        words, environment = self._program, self._programs_environment()
        if isinstance(spec, ScriptSpec):
            # Its servers share the cores of one machine.
            update = {"environment": environment, "threads": spec.threads or 1}
            spec = spec.model_copy(update=update)
            words, environment = (*_OURS_ALONE, *words), {"PYTHONPATH": str(_IMPORT_ROOT)}
        # What the program is comes after the file of the specification, whose name it must have.
        with file_in_memory("program.json", b"") as program:

            def command(file: str) -> list[str]:
                self._describe(program, [*words, file], environment)
                return self._command(server, program)

            rank = await start_rank(
                spec,
                command,
                workdir=self._workdir,
                environment=self._helpers_environment(),
                pass_fds=[program],
            )
        self._started.add(rank.pid)
        return rank

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        with file_in_memory("program.json", b"") as program:
            self._describe(program, words, self._programs_environment())
            argv = self._command(server, program)
            try:
                return await run_to_end(
                    argv,
                    environment=self._helpers_environment(),
                    workdir=self._workdir,
                    pass_fds=[program],
                    given=given,
                    on_line=on_line,
                    where=server,
                )
            except OSError as error:
                raise not_started("a program", server, argv, error) from error

    async def read(self, server: str, source: bytes) -> Ended:
        """Runs it as the user of this process, who is root where a lab is up."""
        argv = self._lab.inside_server(server, [sys.executable, "-I", "-"])
        sockets = {"OVS_RUNDIR": str(run_directory(self._lab.name, server))}
        return await run_to_end(
            argv,
            environment={**self._lab.environment, **sockets},
            given=source,
            on_line=lambda line: None,
            where=server,
        )

    def left(self) -> tuple[RunningProgram, ...]:
        servers = [server.name for server in self._lab.record.servers]
        return tuple(rank for server in servers for rank in self._running(server, self._program))

    def busy(self, server: str) -> tuple[RunningProgram, ...]:
        programs = (self._program, PROFILE_PROGRAM)
        return tuple(rank for program in programs for rank in self._running(server, program))

    def _running(self, server: str, program: Sequence[str]) -> list[RunningProgram]:
        inside = programs_inside(self._lab.record, self._lab.namespace(server), program)
        others = [pid for pid in inside if pid not in self._started]
        # A lab is of the plan whose name it has.
        plan = self._lab.name
        return [RunningProgram(server, pid, running_seconds(pid), plan=plan) for pid in others]

    def end_left(self, ranks: Sequence[RunningProgram]) -> None:
        scripts = [rank.pid for rank in ranks if runs_a_script(rank.pid)]
        others = [rank.pid for rank in ranks if rank.pid not in scripts]
        if remaining := [*end(others), *end(scripts, SCRIPT_GONE_SECONDS)]:
            servers = sorted({rank.server for rank in ranks if rank.pid in remaining})
            raise not_ended({
                server: [r.pid for r in ranks if r.server == server and r.pid in remaining]
                for server in servers
            })  # fmt: skip

    def _command(self, server: str, program: int) -> list[str]:
        """program: the descriptor of the file that says what python runs."""
        python = [self._python, *BECOME, f"/dev/fd/{program}"]
        return self._lab.inside_server(server, [*self._as_the_user(), *python])

    @staticmethod
    def _as_the_user() -> list[str]:
        user, group = os.environ.get("SUDO_UID", "0"), os.environ.get("SUDO_GID", "0")
        identity = [f"--reuid={user}", f"--regid={group}", "--init-groups"] if user != "0" else []
        return ["setpriv", *_WITHOUT_PRIVILEGES, *identity, "--"]

    def _helpers_environment(self) -> dict[str, str]:
        """Returns the environment of what runs as root until the program has its own user. Nothing
        of the plan is in it: its PATH or LD_PRELOAD would decide what root runs."""
        return {**self._lab.environment, "PYTHONUNBUFFERED": "1"}

    def _programs_environment(self) -> dict[str, str]:
        """Returns the variables of ranks, of a script's processes and of other programs."""
        given = {**self._lab.environment, **self._environment}.get("PYTHONPATH", "")
        paths = os.pathsep.join(
            path for path in (str(self._workdir), str(_IMPORT_ROOT), given) if path
        )
        return {**self._environment, "PYTHONPATH": paths}

    @staticmethod
    def _describe(program: int, words: Sequence[str], environment: Mapping[str, str]) -> None:
        os.pwrite(program, described(words, environment), 0)
