"""Gives a command what it needs to talk with a plan's agents: link, journal, launcher, lab."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewire.controller.commands.arguments import state_dir_of
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.errors import (
    AgentUnreachable,
    CannotListen,
    ChangeUnderWay,
    UsageError,
)
from placewire.controller.own_lab import own_lab
from placewire.controller.uninterruptible import NOTHING_CHANGED

if TYPE_CHECKING:
    from placewire.controller.agents.agents import Agents
    from placewire.controller.agents.authority import Authority
    from placewire.controller.launch.launcher import Launcher
    from placewire.controller.plan.plan import Plan, SshLaunch
    from placewire.controller.story.tools import Tools

# -P: root runs it, and must not import from the folder that it happens to be in.
CONTROLLER_PROGRAM = ("-P", "-m", "placewire.command_line", "controller")

Work = Callable[["Plan", "Tools"], Coroutine[Any, Any, int]]
# Called with the controller's folder, before this process leaves its own network for a lab's;
# returns what the command needs there in its environment.
BeforeLab = Callable[[Path], Mapping[str, str]]


def in_session(
    arguments: argparse.Namespace,
    work: Work,
    plan: Plan | None = None,
    *,
    needs_journal: bool = True,
    makes_journal: bool = True,
    runs_job: bool = False,
    every_change: bool = True,
    shapes: bool = False,
    before_lab: BeforeLab | None = None,
) -> int:
    """Runs a command's work, in the lab of the plan's name where one is up. arguments: of
    `add_plan`. plan: replaces what its file has now. needs_journal: whether the work must not begin
    without the journal. makes_journal: whether it makes one where there is none yet. runs_job:
    whether it needs the job's files. every_change: whether to show each change of servers. shapes:
    whether the work is about the plan's rates, which the lab must then have. Raises PlanError
    before anything is done, and AgentUnreachable where no agent can have enrolled here yet."""
    from placewire.controller.plan.plan_file import load_plan

    plan = plan or load_plan(arguments.plan, runs_job=runs_job)
    _enter_lab(plan, arguments, before_lab, shapes)
    session = _with_tools(plan, arguments, work, needs_journal, makes_journal, every_change)
    try:
        return interruptible(session, means=NOTHING_CHANGED)
    except AgentUnreachable as error:
        from placewire.controller.commands.lab_advice import add_lab_advice

        add_lab_advice(error, plan, arguments.plan)
        raise


def _enter_lab(
    plan: Plan,
    arguments: argparse.Namespace,
    before_lab: BeforeLab | None = None,
    shapes: bool = False,
) -> None:
    """Where a lab of the plan's name is up, this process becomes the same command inside it."""
    if arguments.no_lab or own_lab() is not None:
        return
    from placewire.controller.lab import find_lab, refuse_what_a_lab_lacks

    if (lab := find_lab(plan.name)) is not None:
        if shapes:
            refuse_what_a_lab_lacks(plan, lab.record)
        told = f"controller: using the lab {lab.name!r} on this machine"
        print(told, file=sys.stderr, flush=True)
        command = [sys.executable, *CONTROLLER_PROGRAM, *sys.argv[1:]]
        more = {} if before_lab is None else before_lab(state_dir_of(arguments, plan.name))
        lab.run_in_controller(command, more)


def with_launcher(
    arguments: argparse.Namespace, work: Callable[[Plan, Launcher], Coroutine[Any, Any, int]]
) -> int:
    """Like `in_session`, for work that asks no agent: nothing listens, and no journal is opened."""
    from placewire.controller.plan.plan_file import load_plan

    plan = load_plan(arguments.plan, runs_job=False)
    _enter_lab(plan, arguments)
    return interruptible(work(plan, _launcher(plan, arguments.plan)), means=NOTHING_CHANGED)


async def _with_tools(
    plan: Plan,
    arguments: argparse.Namespace,
    work: Work,
    needs_journal: bool,
    makes_journal: bool,
    every_change: bool,
) -> int:
    from placewire.controller.records.journal import Journal
    from placewire.controller.show.story import Show
    from placewire.controller.story.tools import Tools

    state: Path = arguments.state_dir
    show = Show(to_error=arguments.json, every_change=every_change)
    servers = [server.name for server in plan.cluster.servers]
    listening = agents_listening(arguments, servers, show.say)
    with Journal.open(state, show.say, needed=needs_journal, makes=makes_journal) as journal:
        try:
            async with listening as agents:
                launcher = _launcher(plan, arguments.plan)
                tools = Tools(agents, journal, launcher, state / "cache", state / "logs", show)
                return await work(plan, tools)
        except CannotListen as error:
            if (holder := journal.change_lock.holder()) is not None:
                raise ChangeUnderWay(holder, where=error.where) from error
            raise


def authority_of(state_dir: Path) -> Authority:
    """The authority in the controller's folder, made at first use. Raises UsageError where the
    folder is not the controller's own, or the authority cannot be used."""
    from placewire.controller.agents.authority import Authority

    require_own_folder(state_dir)
    return Authority.load(state_dir / "ca")


def require_own_folder(state_dir: Path) -> None:
    """Makes the controller's folder where it is not there. Raises UsageError where it is not the
    controller's own."""
    from placewire.controller.records.journal_file import require_own

    try:
        require_own(state_dir)
    except OSError as error:
        raise UsageError(
            f"the controller's folder cannot be used: {error.strerror}",
            where=str(error.filename or state_dir),
            remedy="run as the user that owns it; remove what another user or a link put there; or "
            "give another --state-dir",
        ) from error


def agents_listening(
    arguments: argparse.Namespace, servers: Sequence[str], say: Callable[[str], None]
) -> AbstractAsyncContextManager[Agents]:
    """The link to the agents. arguments: of `add_link`. servers: whose agents are wanted. say: told
    of every refused connection. Raises UsageError where an argument is wrong, and AgentUnreachable
    where no agent can have enrolled here yet; then nothing is made."""
    from placewire.controller.agents.agents import Agents
    from placewire.controller.agents.refused_connections import FILE, RefusedConnections

    host, port = listening_place(arguments.listen)
    require_authority(arguments.state_dir, servers)
    authority = authority_of(arguments.state_dir)
    refused_connections = RefusedConnections(arguments.state_dir / FILE, say)
    return Agents.listening(host, port, authority, refused_connections)


def require_authority(state_dir: Path, servers: Sequence[str]) -> None:
    """Raises AgentUnreachable where there is no authority: a command that only talks with agents
    makes none, because no agent would know it."""
    from placewire.controller.agents.authority import Authority

    if not Authority.is_made(state_dir / "ca"):
        raise AgentUnreachable(
            servers,
            why=f"no server has enrolled here yet: {state_dir} has no certificate authority",
            remedy="`controller provision PLAN` installs the agents and enrols them, and "
            "`controller enrol` enrols agents that are installed; where another folder of the "
            "controller has their authority, name it with --state-dir",
        )


def listening_place(text: str) -> tuple[str, int]:
    """Parses HOST:PORT; no host means 0.0.0.0. Raises UsageError where the text is wrong."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise UsageError(
            f"--listen {text!r}: give HOST:PORT, like 0.0.0.0:7440, the port from 1 to 65535"
        )
    return host or "0.0.0.0", int(port)


def _launcher(plan: Plan, plan_file: Path) -> Launcher:
    from placewire.controller.decide.measured.profiles import import_roots
    from placewire.controller.lab import find_lab
    from placewire.controller.launch.launcher import NoLauncher

    job = plan.job
    if plan.launch is not None:
        return _ssh_launcher(plan, plan.launch)
    lab = None if (own := own_lab()) is None else find_lab(own.name)
    if lab is None:
        roots = [*import_roots(job, plan_file), os.environ.get("PYTHONPATH", "")]
        paths = os.pathsep.join(path for path in roots if path)
        return NoLauncher(workdir=job.workdir, environment={**job.env, "PYTHONPATH": paths})
    from placewire.controller.launch.lab import LabLauncher

    paths = os.pathsep.join(import_roots(job, plan_file))
    return LabLauncher(
        lab,
        python=None if job.kind == "torchrun" else job.python,
        script=job.script if job.kind == "torchrun" else "",
        script_python=job.python_words if job.kind == "torchrun" else (),
        workdir=None if job.workdir is None else Path(job.workdir),
        environment={"PYTHONPATH": paths, **job.env},
    )


def _ssh_launcher(plan: Plan, launch: SshLaunch) -> Launcher:
    from placewire.controller.launch.ssh import INSTALLED_PYTHON, SshLauncher
    from placewire.controller.launch.ssh_connecting import Login
    from placewire.controller.launch.ssh_connection import Surroundings

    job = plan.job
    key, known_hosts = (
        None if path is None else _expanded(Path(path)) for path in (launch.key, launch.known_hosts)
    )
    return SshLauncher(
        {server.name: server.management for server in plan.cluster.servers},
        Login(launch.user, launch.port, key, known_hosts),
        Surroundings(
            # Placewire's own interpreter starts a script, whose packages may lack ours.
            python=(None if job.kind == "torchrun" else job.python) or INSTALLED_PYTHON,
            workdir=job.workdir,
            environment={"PYTHONUNBUFFERED": "1", **job.env},
        ),
        plan=plan.name,
        model=job.model.partition(":")[0] if job.kind == "placed" else None,
        script=job.script if job.kind == "torchrun" else None,
        script_python=job.python_words if job.kind == "torchrun" else (),
        lease_seconds=plan.network.lease_seconds,
    )


def _expanded(path: Path) -> Path:
    """With the home of `~`; as it stands where that user is not known, and as no file then."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path
