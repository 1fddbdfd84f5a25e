"""`controller history [PLAN|NAME]`: lists the decisions and job runs in the journal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import (
    add_json,
    add_state_dir,
    plan_name,
    state_dir_of,
)
from placewire.controller.commands.talking import print_json
from placewire.optimizer.commands.arguments import positive

if TYPE_CHECKING:
    from placewire.controller.records.journal import Decision, Run

PURPOSE = "list the decisions for servers and the job runs in this machine's journal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", nargs="?", metavar="PLAN|NAME", help="only of this plan: its file or its name"
    )
    parser.add_argument(
        "--last", type=positive, default=20, metavar="N",
        help="how many of each to list; default: %(default)s",
    )  # fmt: skip
    add_json(parser)
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.show.console import console
    from placewire.controller.show.history import decisions_table, runs_table

    name = None if arguments.plan is None else plan_name(arguments.plan)
    state_dir = arguments.state_dir if name is None else state_dir_of(arguments, name)
    decisions, runs = _recorded(state_dir, name, arguments.last)
    if arguments.json:
        print_json({"decisions": list(map(asdict, decisions)), "runs": list(map(asdict, runs))})
    elif not decisions:
        print("nothing was decided yet" + (f" for {name}" if name else ""))
    else:
        out = console()
        out.print(decisions_table(decisions))
        if runs:
            out.print(runs_table(runs))
    return 0


def _recorded(
    state_dir: Path, name: str | None, latest: int
) -> tuple[Sequence[Decision], Sequence[Run]]:
    """The latest so many of each. name: of the plan; None: of all."""
    from placewire.controller.records.journal import Journal

    with Journal.open(state_dir, makes=False) as journal:
        decisions = [one for one in journal.decisions() if name in (None, one.plan_name)]
        return decisions[-latest:], journal.runs(name, latest)
