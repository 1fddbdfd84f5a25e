"""`controller report RUN`: writes a page that shows a run, to look at in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import (
    add_state_dir,
    plan_name,
    require_new,
    require_writable,
    state_dir_of,
)
from placewire.controller.errors import UsageError
from placewire.optimizer.commands.arguments import positive

if TYPE_CHECKING:
    from placewire.controller.records.report import RunReport

PURPOSE = "write a page (HTML) that shows a run: rates, NICs over time, steps, placement"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="PLAN|NAME|RUN",
        help="a plan.yaml or a plan's name, or a file of `apply --out`",
    )
    parser.add_argument(
        "--back", type=positive, default=1, metavar="N",
        help="which run of the plan: 1 is the last one (the default), 2 the one before it, …",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page; default: the plan's name and .html"
    )
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.page.page import write_page

    file = Path(arguments.run)
    if _is_report(file):
        report = _of_file(file)
    else:
        name = plan_name(arguments.run)
        report = _of_journal(name, arguments.back, state_dir_of(arguments, name))
    if (out := arguments.out) is None:
        # A report may come from anywhere, and say any name.
        out = Path(f"{Path(report.plan_name).name}.html")
        require_new(out)
    require_writable(out, reads=file)
    try:
        write_page(report, out)
    except OSError as error:
        raise UsageError(f"--out {out}: not written: {error.strerror}") from error
    print(out)
    return 0


def _is_report(file: Path) -> bool:
    """Whether it is a JSON object, as no plan is, or is called one."""
    if file.suffix == ".json":
        return True
    try:
        with file.open("rb") as opened:
            return opened.read(64).lstrip().startswith(b"{")
    except OSError:
        return False


def _of_file(file: Path) -> RunReport:
    """Raises UsageError."""
    try:
        return _read(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(file)) from error


def _of_journal(name: str, back: int, state_dir: Path) -> RunReport:
    """Raises UsageError."""
    from placewire.controller.records.journal import Journal

    with Journal.open(state_dir, makes=False) as journal:
        runs = journal.runs(name, latest=back)
    if len(runs) < back:
        raise UsageError(
            f"{len(runs)} runs of plan {name!r} are in the journal here",
            where=str(state_dir),
            remedy="`controller history` lists the runs that this machine started",
        )
    return _read(runs[0].report, f"the run of plan {name!r}")


def _read(text: str, where: str) -> RunReport:
    """Raises UsageError."""
    from pydantic import ValidationError

    from placewire.controller.records.report import RunReport
    from placewire.frozen import first_mistake

    try:
        return RunReport.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(
            f"is no run's report of this release: {first_mistake(error)}", where=where
        ) from error
