"""`controller history [PLAN|NAME]`: lists the decisions and job runs in the journal."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from placewire.controller.commands.arguments import add_json, add_state_dir, plan_name
from placewire.controller.commands.talking import print_json
from placewire.optimizer.commands.arguments import positive

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
    from placewire.controller.records.journal import Journal
    from placewire.controller.show.console import console
    from placewire.controller.show.history import decisions_table, runs_table

    name = None if arguments.plan is None else plan_name(arguments.plan)
    with Journal.open(arguments.state_dir) as journal:
        runs = journal.runs(name)[-arguments.last :]
        decisions = [one for one in journal.decisions() if name in (None, one.plan_name)]
    decisions = decisions[-arguments.last :]
    if arguments.json:
        told = {"decisions": list(map(asdict, decisions)), "runs": list(map(asdict, runs))}
        print_json(told)
    elif not decisions:
        print("nothing was decided yet" + (f" for {name}" if name else ""))
    else:
        out = console()
        out.print(decisions_table(decisions))
        if runs:
            out.print(runs_table(runs))
    return 0
