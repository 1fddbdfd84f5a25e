"""`controller apply PLAN|PREVIEW`: places a plan's job, shapes the network and runs the job."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import (
    add_full,
    add_network_only,
    add_no_measurement,
    add_plan,
    require_writable,
    state_dir_of,
    tcp_port,
)
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_document, print_json
from placewire.controller.errors import (
    AgentUnreachable,
    ChangeUnderWay,
    JournalFailed,
    UsageError,
)
from placewire.visible import visible_json, visible_lines

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.records.report import RunReport
    from placewire.controller.story.tools import Tools

PURPOSE = "place the job, shape the network, measure it, run the job, restore"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser, previewed=True)
    parser.add_argument("--yes", action="store_true", help="do not ask before changing servers")
    add_full(parser)
    add_network_only(parser, "shape and measure the network; run no job")
    add_no_measurement(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the report (run.json)")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="also write the report as a page (HTML)"
    )
    parser.add_argument(
        "--metrics-port",
        type=tcp_port,
        metavar="PORT",
        help="serve the run's metrics at this port of the loopback, too (docs/how-to/watch.md)",
    )
    parser.add_argument(
        "--detach",
        action="store_true",
        help="go on in the background, with --yes; `controller attach` shows what it prints",
    )


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.story.preview_file import read_preview

    _require_writable(arguments)
    previewed = read_preview(arguments.plan)
    if previewed is not None:
        arguments.plan = Path(previewed.plan_file)
        _require_writable(arguments)

    if arguments.detach:
        return _detached(arguments, None if previewed is None else previewed.parsed())

    kept: list[RunReport] = []
    written: list[str] = []

    async def work(plan: Plan, tools: Tools) -> int:
        from placewire.controller.apply import apply
        from placewire.controller.metrics.serving import metrics_served
        from placewire.controller.story.tools import ApplyRequest

        def keep(report: RunReport) -> None:
            kept.append(report)
            if _keep(report, tools, arguments.out):
                written.append(f"the run's report is in {arguments.out.absolute()}")

        request = ApplyRequest(
            plan,
            arguments.plan,
            arguments.network_only,
            lambda: confirmed(yes=arguments.yes),
            previewed,
            measured=not arguments.no_measurement,
        )
        port, say = arguments.metrics_port, tools.show.say
        with tools.journal.change_lock.exclusive():
            async with metrics_served(tools.run, arguments.state_dir, port, say):
                try:
                    report = await apply(request, tools, keep)
                finally:
                    page = arguments.report
                    if kept and page is not None and _write_page(kept[-1], page):
                        written.append(f"the run's page is in {page.absolute()}")
                    tools.show.notes(written)
        if arguments.json:
            print_document(report.model_dump(mode="json"))
        return 0

    plan = None if previewed is None else previewed.parsed()
    return in_session(
        arguments, work, plan, runs_job=True, every_change=arguments.full, shapes=True,
        before_lab=lambda state_dir: _port_passed_on(arguments.metrics_port, state_dir),
    )  # fmt: skip


def _port_passed_on(port: int | None, state_dir: Path) -> Mapping[str, str]:
    """Raises UsageError where the port cannot be had."""
    from placewire.controller.metrics.serving import pass_port_on

    try:
        return pass_port_on(port)
    except UsageError:
        # Another `apply` of this lab may be what listens there.
        _require_no_change(state_dir)
        raise


def _require_no_change(state_dir: Path) -> None:
    """Raises ChangeUnderWay."""
    from placewire.controller.records.journal import Journal

    with Journal.open(state_dir, makes=False) as journal:
        if (holder := journal.change_lock.holder()) is not None:
            raise ChangeUnderWay(holder, where=str(state_dir))


@contextmanager
def _beginning_alone(logs: Path, plan_name: str) -> Iterator[None]:
    """For some seconds a command in the background does not hold the lock of changes yet. Raises
    UsageError where another one of this plan has begun; none begins until this ends. Raises
    OSError."""
    from placewire.controller.records.change_lock import ChangeLock
    from placewire.controller.records.detached_output import has_ended, latest_output, process_of

    own = logs / plan_name
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ChangeLock(own, _say, needed=True).exclusive():
        output = latest_output(logs, plan_name)
        if output is not None and not has_ended(output):
            process = process_of(output)
            named = "a command" if process is None else f"process {process}"
            raise ChangeUnderWay(f"{named}, begun with --detach", where=str(output))
        yield


def _detached(arguments: argparse.Namespace, plan: Plan | None) -> int:
    """Starts the same command without `--detach`. plan: of a preview; None: the plan's file is
    read, so that its mistakes are told here. Raises PlanError, UsageError, and
    AgentUnreachable where no agent can have enrolled here yet; then nothing is made."""
    from placewire.controller.commands.lab_advice import add_lab_advice
    from placewire.controller.commands.session import (
        CONTROLLER_PROGRAM,
        require_authority,
        require_own_folder,
    )
    from placewire.controller.detached import start
    from placewire.controller.plan.plan_file import load_plan

    if not arguments.yes:
        raise UsageError("--detach leaves nobody to ask; nothing was changed", remedy="give --yes")
    plan = plan or load_plan(arguments.plan, runs_job=True)
    # argparse takes the beginning of an option for it.
    words = [
        word for word in sys.argv[1:] if not (word[:3] == "--d" and "--detach"[: len(word)] == word)
    ]
    state_dir = state_dir_of(arguments, plan.name)
    try:
        require_authority(state_dir, [server.name for server in plan.cluster.servers])
    except AgentUnreachable as error:
        add_lab_advice(error, plan, arguments.plan)
        raise
    require_own_folder(state_dir)
    _require_no_change(state_dir)
    command, logs = [sys.executable, *CONTROLLER_PROGRAM, *words], state_dir / "logs"
    try:
        with _beginning_alone(logs, plan.name):
            output = start(command, logs, plan.name)
    except OSError as error:
        raise UsageError(
            f"it cannot be begun in the background: {error.strerror}",
            where=str(error.filename or state_dir),
        ) from error
    if arguments.json:
        print_json({"plan": plan.name, "output": str(output)})
    else:
        print(f"{plan.name} is applied in the background; what it prints is in {output}")
        print(f"  controller attach {plan.name}         shows it until it ends")
        print(f"  controller attach {plan.name} --stop  ends it, and the network is put back")
    return 0


def _require_writable(arguments: argparse.Namespace) -> None:
    """Raises UsageError."""
    require_writable(arguments.out, reads=arguments.plan)
    require_writable(arguments.report, reads=arguments.plan, option="--report")
    both = arguments.out is not None and arguments.report is not None
    if both and arguments.out.resolve() == arguments.report.resolve():
        raise UsageError("--out and --report are the same file", remedy="give two names")


def _keep(report: RunReport, tools: Tools, out: Path | None) -> bool:
    """Writes the report to the journal and to `out`; returns whether it is in a file of that name,
    and not in a stream. Where neither takes it, it goes to another file, or to standard error: the
    run has ended, and nothing can make its report again. The command's exit status says how the run
    ended."""
    from placewire.controller.records.unrecorded import write_elsewhere
    from placewire.optimizer.graph.named_output import open_stream

    text = visible_json(report.model_dump_json(indent=2)) + "\n"
    kept = is_out = is_file = False
    try:
        tools.journal.record_run(report.plan_name, report.model_dump_json())
        kept = True
    except JournalFailed as error:
        _say(f"this run is not in the journal: {error}; `controller history` will not show it")
    if out is not None:
        try:
            stream = open_stream(out)
            with stream or out.open("wb") as file:
                file.write(text.encode())
            is_out, is_file = True, stream is None
        except OSError as error:
            _say(f"--out {out}: not written: {error.strerror}")
    if kept or is_out:
        return is_file
    folders = (tools.logs / report.plan_name, Path.cwd(), Path(tempfile.gettempdir()))
    elsewhere = write_elsewhere(report.plan_name, text, folders)
    if elsewhere is not None:
        _say(f"the run's report is in {elsewhere}")
    else:
        _say(f"the run's report can be written nowhere; here it is:\n{text}")
    return False


def _write_page(report: RunReport, page: Path) -> bool:
    """Returns whether it is in a file of that name, and not in a stream. A page that cannot be made
    must not change how the run ended: run.json has all of it."""
    try:
        from placewire.controller.page.page import write_page

        return write_page(report, page)
    except Exception as error:
        _say(f"--report {page}: not written: {error or type(error).__name__}")
        return False


def _say(what: str) -> None:
    print(visible_lines(f"controller: {what}", indent="  "), file=sys.stderr)
