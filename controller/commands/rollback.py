"""`controller rollback PLAN [DECISION]`: goes back to a network that was kept before."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_full, add_no_measurement, add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_json
from placewire.controller.few_names import counts_in_words
from placewire.optimizer.commands.arguments import positive

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "go back to a network that was kept before, and measure it again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument(
        "decision", nargs="?", type=positive, metavar="DECISION",
        help="the number of a decision in `controller history`; default: the last one that was "
        "kept and is not in force",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask before changing servers")
    add_full(parser)
    add_no_measurement(parser)


def run(arguments: argparse.Namespace) -> int:
    async def work(plan: Plan, tools: Tools) -> int:
        from placewire.controller.story.rollback import roll_back

        with tools.journal.change_lock.exclusive():
            counts = await roll_back(
                plan,
                arguments.decision,
                tools,
                lambda: confirmed(yes=arguments.yes),
                measured=not arguments.no_measurement,
            )
        if arguments.json:
            print_json({"changes": dict(counts)})
        else:
            tools.show.say(
                f"kept: {counts_in_words(counts)} changes; `controller verify` measures it at any "
                "time"
            )
        return 0

    return in_session(arguments, work, every_change=arguments.full)
