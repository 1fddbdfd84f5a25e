"""What each command of the `controller` does: wiring of the rooms, and the choice of launcher."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.errors import PlacewireError, RestoreFailed, UsageError, restore_by_hand
from controller.plan import Plan
from controller.plan_file import load_plan

if TYPE_CHECKING:
    from agent.contract.messages import Observation, Verified
    from controller.apply import Request, Tools
    from controller.lab import Lab
    from controller.launch.launcher import Launcher
    from controller.report import RunReport

LAB_VARIABLE = "PLACEWIRE_LAB"


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "lab":
        return _lab(arguments)
    if arguments.command == "authority":
        return _issue(arguments)
    if arguments.command == "demo":
        from controller.demo import demo

        return demo(arguments.keep_files)
    if arguments.command == "evaluate":
        return _interruptible(_evaluate(arguments))
    plan = load_plan(arguments.plan)
    _enter_lab(plan, arguments)
    commands: dict[str, Callable[..., Coroutine[Any, Any, int]]] = {
        "preview": _preview,
        "apply": _apply,
        "status": _status,
        "destroy": _destroy,
    }
    return _interruptible(commands[arguments.command](plan, arguments))


def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    """The first SIGINT or SIGTERM cancels the work, which restores what it changed on its way out;
    further ones do not stop the restoring."""

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        signals: list[int] = []

        def on_signal(number: int) -> None:
            if not signals:
                task.cancel()
            signals.append(number)
            print("controller: interrupted; putting everything back", file=sys.stderr)

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _enter_lab(plan: Plan, arguments: argparse.Namespace) -> None:
    """Where a lab of the plan's name is up, go on inside its controller's namespace."""
    if arguments.no_lab or LAB_VARIABLE in os.environ:
        return
    from controller.lab import find_lab

    lab = find_lab(plan.name)
    if lab is None:
        return
    print(f"controller: using the lab {plan.name!r} on this machine", file=sys.stderr)
    sys.stderr.flush()
    lab.run_in_controller([sys.executable, "-m", "controller.cli", *sys.argv[1:]])


def _inside_lab() -> Lab | None:
    name = os.environ.get(LAB_VARIABLE)
    if name is None:
        return None
    from controller.lab import find_lab

    return find_lab(name)


def _launcher(plan: Plan, plan_file: Path) -> Launcher:
    from controller.launch.launcher import NoLauncher
    from controller.measured.profiles import import_roots

    job = plan.job
    lab = _inside_lab()
    if lab is None:
        roots = [*import_roots(job, plan_file), os.environ.get("PYTHONPATH", "")]
        paths = os.pathsep.join(path for path in roots if path)
        return NoLauncher(workdir=job.workdir, environment={**job.env, "PYTHONPATH": paths})
    from controller.launch.lab import LabLauncher

    paths = os.pathsep.join(import_roots(job, plan_file))
    return LabLauncher(
        lab,
        python=job.python,
        workdir=None if job.workdir is None else Path(job.workdir),
        environment={"PYTHONPATH": paths, **job.env},
    )


async def _with_tools(
    plan: Plan, arguments: argparse.Namespace, work: Callable[[Tools], Coroutine[Any, Any, int]]
) -> int:
    from controller.agents import Agents
    from controller.apply import Tools
    from controller.ca import Authority
    from controller.journal import Journal
    from controller.show import Show

    state: Path = arguments.state_dir
    host, port = _listening_place(arguments.listen)
    authority = Authority.load(state / "ca")
    with Journal.open(state) as journal:
        async with Agents.listening(host, port, authority) as agents:
            launcher = _launcher(plan, arguments.plan)
            show = Show(to_error=arguments.json)
            return await work(Tools(agents, journal, launcher, state / "cache", show))


def _listening_place(text: str) -> tuple[str, int]:
    """Raises UsageError where it is not HOST:PORT, or no port that agents could be told."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise UsageError(
            f"--listen {text!r}: give HOST:PORT, like 0.0.0.0:7440, the port from 1 to 65535"
        )
    return host or "0.0.0.0", int(port)


async def _no_confirmation() -> bool:
    return True


def _request(
    plan: Plan,
    arguments: argparse.Namespace,
    confirm: Callable[[], Awaitable[bool]] = _no_confirmation,
) -> Request:
    from controller.apply import Request

    network_only = getattr(arguments, "network_only", False)
    return Request(plan, arguments.plan, network_only, confirm)


async def _preview(plan: Plan, arguments: argparse.Namespace) -> int:
    from controller.apply import propose

    async def work(tools: Tools) -> int:
        proposal = await propose(_request(plan, arguments), tools)
        if arguments.json:
            print_json(
                {
                    "plan": plan.name,
                    "predicted_step_seconds": proposal.decision.placement.step_seconds,
                    "changes": {
                        server: [change.model_dump() for change in answer.changes]
                        for server, answer in proposal.previewed.items()
                    },
                }
            )
        return 0

    return await _with_tools(plan, arguments, work)


async def _apply(plan: Plan, arguments: argparse.Namespace) -> int:
    from controller.apply import apply

    if arguments.out is not None and not os.access(arguments.out.resolve().parent, os.W_OK):
        raise UsageError(f"--out {arguments.out}: its folder cannot be written to")

    async def work(tools: Tools) -> int:
        if not arguments.network_only:
            tools.launcher.require_ready()
        with tools.journal.exclusive():
            try:
                report = await apply(_request(plan, arguments, _confirmation(arguments)), tools)
            except PlacewireError as failure:
                if failure.report is not None:
                    _keep_report(failure.report, tools, arguments)
                    tools.show.failed(failure.report)
                raise
            _keep_report(report, tools, arguments)
        if arguments.json:
            print_json(report.model_dump(mode="json"))
        return 0

    return await _with_tools(plan, arguments, work)


def _keep_report(report: RunReport, tools: Tools, arguments: argparse.Namespace) -> None:
    tools.journal.record_run(report.plan_name, report.model_dump_json())
    if arguments.out is not None:
        arguments.out.write_text(report.model_dump_json(indent=2) + "\n")


def _confirmation(arguments: argparse.Namespace) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        if arguments.yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError(
                "there is no terminal to confirm at; nothing was changed", remedy="give --yes"
            )
        print("Change these servers? [y/N] ", end="", file=sys.stderr, flush=True)
        return (await _typed_line()).strip().lower() in ("y", "yes")

    return ask


async def _typed_line() -> str:
    """Agents are served, and an interrupt is heard, while the person thinks."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


async def _status(plan: Plan, arguments: argparse.Namespace) -> int:
    from agent.contract.messages import Observation, Observe
    from controller.errors import AgentProblem, AgentUnreachable
    from controller.job_status import job_status

    async def work(tools: Tools) -> int:
        servers = [server.name for server in plan.cluster.servers]
        missing: tuple[str, ...] = ()
        try:
            await tools.agents.wait_for(servers, timeout_seconds=3)
        except AgentUnreachable as problem:
            missing = problem.servers
        observations: dict[str, Observation | None] = dict.fromkeys(servers)
        try:
            present = {server: Observe() for server in servers if server not in missing}
            observations |= await tools.agents.ask_all(present, Observation, timeout_seconds=10)
        except AgentProblem as problem:
            observations |= problem.answered
        verified = await _verify(tools, observations)
        job = job_status(plan, tools.launcher, tools.journal)
        if arguments.json:
            answers = {
                server: None
                if answer is None
                else answer.model_dump(mode="json")
                | {"verified": server in verified and verified[server].model_dump(mode="json")}
                for server, answer in observations.items()
            }
            print_json({"servers": answers, "job": asdict(job)})
        else:
            tools.show.status(observations, verified)
            tools.show.job(job)
        return 5 if None in observations.values() else 0

    return await _with_tools(plan, arguments, work)


async def _verify(
    tools: Tools, observations: Mapping[str, Observation | None]
) -> dict[str, Verified]:
    """What differs, in the kernel too, from what is in force; only servers where something is."""
    from agent.contract.messages import Verified, Verify
    from controller.errors import AgentProblem

    in_force = {
        server: Verify(generation=answer.lease.generation)
        for server, answer in observations.items()
        if answer is not None and answer.lease.phase in ("staged", "committed")
    }
    try:
        return await tools.agents.ask_all(in_force, Verified, timeout_seconds=15)
    except AgentProblem as problem:
        return problem.answered


async def _destroy(plan: Plan, arguments: argparse.Namespace) -> int:
    from agent.contract.messages import Destroy
    from agent.contract.state import ApplyReport
    from controller.apply import end_left_ranks

    async def work(tools: Tools) -> int:
        servers = [server.name for server in plan.cluster.servers]
        await tools.agents.wait_for(servers, timeout_seconds=10)
        if not await _confirmation(arguments)():
            raise UsageError("not confirmed; nothing was changed")
        with tools.journal.exclusive():
            await end_left_ranks(tools)
            reports = await tools.agents.ask_all(
                dict.fromkeys(servers, Destroy(plan_name=plan.name)),
                ApplyReport,
                timeout_seconds=60,
            )
        left = {server: r.refusals for server, r in reports.items() if not r.verified}
        if left:
            raise RestoreFailed(
                "; ".join(refusal.what for some in left.values() for refusal in some),
                where=", ".join(left),
                remedy=restore_by_hand(list(left)),
            )
        counts = {server: len(report.changes) for server, report in reports.items()}
        if arguments.json:
            print_json({"changes": counts})
        else:
            tools.show.say(
                "removed: " + ", ".join(f"{server} {count}" for server, count in counts.items())
                + " changes; every server is as it was before, read back"
            )  # fmt: skip
        return 0

    return await _with_tools(plan, arguments, work)


async def _evaluate(arguments: argparse.Namespace) -> int:
    import tempfile

    from controller.measured.standard_evaluation import Evaluation, evaluate
    from optimizer.graph import load_graph, save_graph

    out = Path(arguments.out)
    if not os.access(out.resolve().parent, os.W_OK):
        raise UsageError(f"--out {out}: its folder cannot be written to")
    asked = Evaluation(
        model=arguments.model,
        batch=arguments.batch,
        small_batches=tuple(arguments.small_batches),
        devices=arguments.devices,
        memory_bytes=arguments.device_memory,
        device_type=arguments.device_type,
        threads=arguments.threads,
        samples=arguments.samples,
        optimizer=arguments.optimizer,
        accumulate=arguments.accumulate,
        autocast=arguments.autocast,
        seed=arguments.seed,
    )
    with tempfile.TemporaryDirectory(prefix="placewire-evaluation-") as folder:
        measured = await evaluate(
            asked, Path(folder), lambda line: print(line, file=sys.stderr, flush=True)
        )
        save_graph(load_graph(measured), out)
    return 0


def _issue(arguments: argparse.Namespace) -> int:
    import shutil

    from controller.ca import Authority

    authority = Authority.load(arguments.state_dir / "ca")
    lifetime_seconds = arguments.days * 86_400
    issued = authority.issue(
        arguments.server, "agent", arguments.out, lifetime_seconds=lifetime_seconds
    )
    try:
        copied = shutil.copy(authority.certificate_file, arguments.out)
    except OSError as error:
        raise UsageError(
            f"--out {arguments.out}: the authority's certificate cannot be copied there: {error}"
        ) from error
    for file in (issued.certificate_file, issued.key_file, copied):
        print(file)
    return 0


def _lab(arguments: argparse.Namespace) -> int:
    from controller.lab import lab_down, lab_names, lab_up

    if arguments.action == "list":
        for name in lab_names():
            print(name)
        return 0
    if arguments.action == "up":
        lab_up(load_plan(arguments.plan), print)
        return 0
    path = Path(arguments.plan)
    name = load_plan(path).name if path.is_file() else arguments.plan
    if name not in lab_names():
        raise PlacewireError(f"there is no lab {name!r}", remedy="`controller lab list` names them")
    lab_down(name, print)
    return 0


def print_json(document: object) -> None:
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")
