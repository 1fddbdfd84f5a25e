"""Starts ranks and other programs on servers over SSH, as the user that the plan names."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from placewire.controller.abandonable import abandonable, each_in_a_thread
from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.launcher import (
    ISOLATED,
    PROFILE_PROGRAM,
    RANK_PROGRAM,
    RunningProgram,
    not_ended,
    not_looked_at,
)
from placewire.controller.launch.own_runs import (
    OTHER,
    RANK,
    SPEC_FILE,
    LeftRun,
    Run,
    ending,
    finding,
    found,
    is_row,
)
from placewire.controller.launch.programs import TAIL_LINES, Ended, OnLine, follow
from placewire.controller.launch.rank_files import rank_files
from placewire.controller.launch.script_look import LONGEST_SECONDS, LOOK, problem_in, question
from placewire.controller.launch.ssh_connecting import LOST_SECONDS, Login
from placewire.controller.launch.ssh_connection import (
    ANSWER_SECONDS,
    ENDING_SECONDS,
    PROGRAM_SECONDS,
    InFolder,
    SshServer,
    Started,
    Surroundings,
)
from placewire.controller.launch.ssh_program import SshProgram
from placewire.controller.uninterruptible import uninterruptible
from placewire.job.contract.specification import ProgramSpec, RankSpec, ScriptSpec
from placewire.optimizer.device_names import server_of

_Answer = TypeVar("_Answer")

# The interpreter that playbooks/agent.yaml installs.
INSTALLED_PYTHON = "/opt/placewire/.venv/bin/python"
# Servers that are down or silent must not keep the others waiting.
_MOST_AT_ONCE = 128
# The server's kernel gives a connection up by then, however long the lease. It tells that a server
# lost power where no other server's ranks miss it.
_MOST_LOST_SECONDS = 900.0
# For all servers together, and longer than one that is silent is waited for: to end ranks, it is
# asked twice, and whether it is ready, four times beside the program.
_LOOK_SECONDS = 1.5 * ANSWER_SECONDS
_END_SECONDS = 1.5 * ANSWER_SECONDS + ENDING_SECONDS
_READY_SECONDS = PROGRAM_SECONDS + LONGEST_SECONDS + 4.5 * ANSWER_SECONDS
# sbin is where Debian has ip and tc, and not on every user's path.
_READ = 'PATH="$PATH:/usr/sbin:/sbin" exec python3 -I -'
# A killed program ends when a processor is free for that; on a lost server it ends by its lease.
_KILL_SECONDS = 15.0
_LOOK = f"""{LOOK}
import importlib.metadata as m, importlib.util as u, sys
from placewire.job.contract.specification import RankSpec, ScriptSpec
model, script, question = json.load(open(sys.argv[1]))
print(json.dumps({{
    "placewire": m.version("placewire"), "torch": m.version("torch"),
    "model": not model or u.find_spec(model) is not None,
    "script": not script or bool(question) or os.path.isfile(script),
    "by_words": look(**question) if question else None,
    "pydantic": m.version("pydantic"),
    "told": sorted({{*RankSpec.model_fields, *ScriptSpec.model_fields}}),
    "schemas": [spec.model_json_schema() for spec in (RankSpec, ScriptSpec)],
}}))
"""
_LIST = 'ps -ww -u "$(id -u)" -o pid=,sess=,etimes=,args='


class SshLauncher:
    """addresses: of the servers' sshd, by server. plan: its name, which marks what is started.
    model: the module that ranks import, or None. script: the file that ranks run, or None, and
    script_python the words before it. program: what python runs as a rank."""

    on_servers = True

    def __init__(
        self,
        addresses: Mapping[str, str],
        login: Login,
        around: Surroundings,
        *,
        plan: str,
        model: str | None = None,
        script: str | None = None,
        script_python: Sequence[str] = (),
        lease_seconds: float = 0.0,
        program: Sequence[str] = RANK_PROGRAM,
    ) -> None:
        self._servers = {
            server: SshServer(server, address, login) for server, address in addresses.items()
        }
        self._around, self._program, self._plan = around, tuple(program), plan
        # What starts a script, or looks at its interpreter, imports nothing of the user's.
        self._of_ours = replace(around, environment={})
        self._model, self._script = model or "", script or ""
        self._script_python = tuple(script_python)
        # A rank may run on so long without a word from here. The kernel sends it again until then.
        self._rank_lost_seconds = min(max(LOST_SECONDS, lease_seconds), _MOST_LOST_SECONDS)
        self._leaders: set[tuple[str, int]] = set()
        self._own: set[tuple[str, Run]] = set()
        self._kind = _kind_of(self._program)

    def require_ready(self) -> None:
        """Raises LaunchFailed or UsageError, which name the server and what is missing there."""
        for problem in _answers(list(self._servers.values()), self._problem, _READY_SECONDS):
            if problem is not None:
                raise problem

    async def start(self, spec: ProgramSpec) -> SshProgram:
        around, program = self._around, self._program
        if isinstance(spec, ScriptSpec):
            spec = spec.model_copy(update={"environment": around.unmarked})
            around, program = self._of_ours, (*ISOLATED, *program)
        files = rank_files(spec)

        def words_and_files(folder: str) -> tuple[Sequence[str], Mapping[str, bytes]]:
            there = files.spec_in(folder).model_dump_json().encode()
            return [*program, f"{folder}/{SPEC_FILE}"], {**files.contents, SPEC_FILE: there}

        return await self._begin(
            self._servers[server_of(spec.device)],
            words_and_files,
            spec.rank,
            around,
            may_save=isinstance(spec, ScriptSpec),
        )

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        on = self._servers[server]
        program = await self._begin(on, lambda folder: (words, {}), -1, self._around)
        try:
            _, output, tail = await asyncio.gather(
                program.feed(given), program.whole_output(), follow(program.errors(), on_line)
            )
            return Ended(await program.wait(), output, tail)
        finally:
            program.kill()
            await uninterruptible(program.ended(_KILL_SECONDS))

    async def read(self, server: str, source: bytes) -> Ended:
        on = self._servers[server]
        status, said, complaint = await abandonable(partial(on.run, _READ, source))
        return Ended(status, said.encode(), tuple(complaint.splitlines()[-TAIL_LINES:]))

    def left(self) -> tuple[RunningProgram, ...]:
        outcomes = _answers(list(self._servers.values()), self._left_of, _LOOK_SECONDS)
        problems = [one for one in outcomes if isinstance(one, LaunchFailed)]
        ranks = [rank for one in outcomes if not isinstance(one, LaunchFailed) for rank in one]
        if problems:
            raise not_looked_at(problems, ranks)
        return tuple(ranks)

    def busy(self, server: str) -> tuple[RunningProgram, ...]:
        on = self._servers[server]
        programs = (self._program, PROFILE_PROGRAM)
        return tuple(rank for program in programs for rank in self._running(on, program))

    def end_left(self, ranks: Sequence[RunningProgram]) -> None:
        runs: dict[str, set[str]] = {}
        for rank in ranks:
            runs.setdefault(rank.server, set()).add(rank.run)
        servers = sorted(runs)

        def end(on: SshServer) -> list[int]:
            found_there = [one for one in self._left_on(on) if one.run.plan == self._plan]
            left = [one for one in found_there if one.run.identifier in runs[on.name]]
            remain = self._listed(on, ending(left), ENDING_SECONDS).split() if left else []
            if not is_row(remain, len(remain), numbers=len(remain)):
                raise _not_understood(on, f"it prints {' '.join(remain)[-200:]!r}, not processes")
            return [int(pid) for pid in remain]

        outcomes = _answers([self._servers[name] for name in servers], end, _END_SECONDS)
        each = zip(servers, outcomes, strict=True)
        stuck = {s: one for s, one in each if one and not isinstance(one, LaunchFailed)}
        problems = [one for one in outcomes if isinstance(one, LaunchFailed)]
        if stuck:
            raise not_ended(stuck, problems)
        if problems:
            raise not_looked_at(problems, ())

    async def _begin(
        self,
        on: SshServer,
        words_and_files: InFolder,
        rank: int,
        around: Surroundings,
        *,
        may_save: bool = False,
    ) -> SshProgram:
        """rank: -1 where the program is none."""
        run = Run(OTHER if rank < 0 else self._kind, plan=self._plan)
        self._own.add((on.name, run))
        lost_seconds = LOST_SECONDS if rank < 0 else self._rank_lost_seconds
        starting = asyncio.create_task(
            abandonable(partial(on.start, around, words_and_files, run, lost_seconds))
        )
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread starts the program all the same
            await uninterruptible(_end_unwanted(on, starting))
            raise
        self._leaders.add((on.name, started.leader))
        return SshProgram(rank, on, started, may_save=may_save)

    def _left_of(self, on: SshServer) -> list[RunningProgram]:
        return [
            RunningProgram(on.name, one.pid, one.seconds, one.run.identifier, one.run.plan)
            for one in self._left_on(on)
        ]

    def _left_on(self, on: SshServer) -> list[LeftRun]:
        """Finds ranks that a launcher started and that this one did not, of whatever plan. What
        somebody typed is none of them."""
        return [
            one
            for one in found(self._listed(on, finding()))
            if one.run.kind == self._kind and (on.name, one.run) not in self._own
        ]

    @staticmethod
    def _listed(on: SshServer, script: str, seconds: float = ANSWER_SECONDS) -> str:
        """Returns what it prints of processes. Raises LaunchFailed where it did not come to its
        end: ranks that are not listed would be taken for ranks that do not run."""
        status, printed, complaint = on.run(script, seconds=seconds)
        if status != 0:
            raise LaunchFailed(
                f"its processes cannot be listed: {complaint.strip() or f'exit {status}'}",
                where=on.name,
                remedy="look whether procps is installed there, and at the network in between",
            )
        return printed

    def _running(self, on: SshServer, program: Sequence[str]) -> list[RunningProgram]:
        """Finds programs that this launcher did not start, whoever started them; they disturb a
        measurement, and are only told of."""
        _, listed, _ = on.run(_LIST)
        rows = [line.split(maxsplit=3) for line in listed.splitlines()]
        return [
            RunningProgram(on.name, int(pid), float(seconds))
            for pid, session, seconds, command in (row for row in rows if is_row(row, 4, numbers=3))
            if _is_of(command.split()[1:], program) and (on.name, int(session)) not in self._leaders
        ]

    def _problem(self, on: SshServer) -> LaunchFailed | UsageError | None:
        def problem(what: str, remedy: str) -> UsageError:
            return UsageError(what, where=on.name, remedy=remedy)

        words, given = self._script_python, self._around.unmarked
        asked = [self._model, self._script, words and question(self._script, words, given)]

        def words_and_files(folder: str) -> tuple[Sequence[str], Mapping[str, bytes]]:
            look = [*(ISOLATED if self._script else ()), "-c", _LOOK, f"{folder}/question.json"]
            return look, {"question.json": json.dumps(asked).encode()}

        around = self._of_ours if self._script else self._around
        seconds = PROGRAM_SECONDS + (LONGEST_SECONDS if self._script_python else 0)
        try:
            status, said, complaint = on.run_program(around, words_and_files, seconds)
        except LaunchFailed as error:
            return error
        if status != 0:
            last = (complaint.strip().splitlines() or [f"exit {status}"])[-1]
            what, program = "ranks", "job.python"
            if self._script:
                what, program = "what starts a script", INSTALLED_PYTHON
            return problem(
                f"{what} cannot run there: {last}",
                f"look at {program} and job.workdir on that server; playbooks/agent.yaml installs "
                f"{INSTALLED_PYTHON}",
            )
        try:
            # The interpreter may print lines of its own before, as from a sitecustomize.
            found = json.loads(said.strip().rpartition("\n")[2])
        except (ValueError, RecursionError):
            return problem(
                f"its Python gives no answer, but prints {said.strip()[-200:]!r}",
                "look at what runs whenever that Python starts, such as a sitecustomize",
            )
        found = found if isinstance(found, dict) else {}
        for package in ("placewire", "torch"):
            here, there = importlib.metadata.version(package), str(found.get(package))
            # Behind the plus, builds of one release differ for CPUs and GPUs.
            if there.partition("+")[0] != here.partition("+")[0]:
                return problem(
                    f"{package} {there} is installed there, and {here} here",
                    "install the same release on the controller and on every server",
                )
        if not found.get("model"):
            return problem(
                f"module {self._model!r} is not found there",
                "bring it to that server, and name its folder in job.workdir, or in PYTHONPATH in "
                "job.env",
            )
        if not found.get("script"):
            return problem(
                f"script {self._script!r} is not found there",
                "bring it to that server; job.script is looked for in job.workdir",
            )
        if not _is_told_the_same(found):
            return problem(
                "another commit of Placewire is installed there, whose ranks are told other things",
                "run `controller provision` with the --login and --inventory of the installation: "
                "it brings each server the controller's code",
            )
        if self._script_python and (
            wrong := problem_in(found.get("by_words"), self._script, self._script_python)
        ):
            return problem(*wrong)
        return None


def _is_told_the_same(found: Mapping[str, object]) -> bool:
    """Whether what the server's Placewire found says of its specifications is as here."""
    if found.get("told") != sorted({*RankSpec.model_fields, *ScriptSpec.model_fields}):
        return False
    if found.get("pydantic") != importlib.metadata.version("pydantic"):
        return True  # Another pydantic may write another schema of the same.
    here = json.dumps([spec.model_json_schema() for spec in (RankSpec, ScriptSpec)])
    return _without_prose(found.get("schemas")) == _without_prose(json.loads(here))


def _without_prose(schema: object) -> object:
    """Returns a JSON schema without what it only tells people: another wording is no other rank. A
    field of such a name is no string."""
    if isinstance(schema, list):
        return [_without_prose(one) for one in schema]
    if isinstance(schema, dict):
        return {
            name: _without_prose(one)
            for name, one in schema.items()
            if not (name in ("description", "title") and isinstance(one, str))
        }
    return schema


def _is_of(words: Sequence[str], program: Sequence[str]) -> bool:
    """Whether an interpreter that is given these words runs this program."""
    first = len(ISOLATED) if tuple(words[: len(ISOLATED)]) == ISOLATED else 0
    return list(words[first : first + len(program)]) == list(program)


def _kind_of(program: Sequence[str]) -> str:
    """Returns how its runs are marked: a stand-in for ranks is told apart from ranks."""
    if tuple(program) == RANK_PROGRAM:
        return RANK
    return f"{RANK}-{hashlib.sha256(repr(tuple(program)).encode()).hexdigest()[:16]}"


def _answers(
    servers: Sequence[SshServer], ask: Callable[[SshServer], _Answer], seconds: float
) -> list[_Answer | LaunchFailed]:
    """Asks many servers at once. Returns what each answers, or why it does not; none waits for
    another, and a server that has not answered after so many seconds is left to itself."""

    def answer(on: SshServer) -> _Answer | LaunchFailed:
        try:
            return ask(on)
        except LaunchFailed as error:
            return error
        except Exception as error:  # One server must not keep the others from being asked.
            return _not_understood(on, f"{type(error).__name__}: {error}")

    def unheard(number: int) -> _Answer | LaunchFailed:
        return LaunchFailed(
            f"nothing was heard of it within {seconds:g} s; too many servers are silent",
            where=servers[number].name,
            remedy="look at the sshd of the plan's servers, and at the network in between",
        )

    asking = [partial(answer, on) for on in servers]
    return each_in_a_thread(asking, _MOST_AT_ONCE, seconds=seconds, otherwise=unheard)


def _not_understood(on: SshServer, why: str) -> LaunchFailed:
    return LaunchFailed(
        f"what it answers over SSH is not understood: {why}",
        where=on.name,
        remedy="look at that server, its sshd and the user there: what that user's shell and `ps` "
        "print",
    )


async def _end_unwanted(on: SshServer, starting: asyncio.Task[Started]) -> None:
    with contextlib.suppress(LaunchFailed):  # it was not started, or its lease ends it
        with contextlib.closing(await starting) as started:
            await asyncio.to_thread(on.kill, started)
