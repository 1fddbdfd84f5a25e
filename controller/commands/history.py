"""`controller history [NAME]`: what was decided and run before, as the journal has it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from placewire.controller.commands.arguments import add_json, add_state_dir, plan_name
from placewire.controller.commands.talking import print_json
from placewire.optimizer.commands.arguments import positive

PURPOSE = "what was decided for servers, and how jobs ran, by this machine's journal"
_LAST = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", nargs="?", metavar="PLAN|NAME", help="of this plan only: its file or its name"
    )
    parser.add_argument(
        "--last", type=positive, default=_LAST, metavar="N", help="of each; default: %(default)s"
    )
    add_json(parser)
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.records.journal import Journal
    from placewire.controller.show.console import console
    from placewire.controller.show.history import decisions_table, runs_table

    name = None if arguments.plan is None else plan_name(arguments.plan)
    with Journal.open(arguments.state_dir) as journal:
        runs = journal.runs(name)[-arguments.last :]
        decisions = [one for one in journal.decisions() if name in (None, one.plan_name)][
            -arguments.last :
        ]
    if arguments.json:
        document: dict[str, Any] = {
            "decisions": [asdict(one) for one in decisions],
            "runs": [asdict(one) for one in runs],
        }
        print_json(document)
    elif not decisions:
        print("nothing was decided yet" + (f" for {name}" if name else ""))
    else:
        out = console()
        out.print(decisions_table(decisions))
        if runs:
            out.print(runs_table(runs))
    return 0
