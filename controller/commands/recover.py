"""`controller recover PLAN`: finishes or undoes a change whose controller died."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_json
from placewire.controller.errors import LaunchFailed, UsageError

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "finish or undo a change whose controller died in the middle of it"
_TOLD = {
    "finish": "the decision was to keep the change: every server keeps it",
    "undo": "the change is not kept: every server is on its former state",
    "destroy": "the decision was to destroy: every server is as it was before Placewire",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask before changing servers")


def run(arguments: argparse.Namespace) -> int:
    async def work(plan: Plan, tools: Tools) -> int:
        from placewire.controller.story.job_run import end_left_ranks
        from placewire.controller.story.recovery import left_open, recover, way_of

        with tools.journal.exclusive():
            if (found := left_open(tools.journal, plan.name)) is not None:
                tools.show.say(
                    f"decision {found.id} was left at {found.last_phase!r}; recovery will "
                    f"{way_of(found)} it"
                )
                if not await confirmed(yes=arguments.yes):
                    raise UsageError("not confirmed; nothing was changed")
                try:
                    await end_left_ranks(tools)
                except LaunchFailed as problem:
                    tools.show.say(f"could not look for ranks that still run: {problem}")
            done = await recover(plan, tools.agents, tools.journal)
        if done is None:
            if arguments.json:
                print_json(None)
            else:
                tools.show.say("no change was left unfinished")
            return 0
        decision, later = done.decision.id, done.by_lease
        if arguments.json:
            print_json({"decision": decision, "way": done.way, "by_lease": [*later]})
        else:
            when = f", {', '.join(later)} once the lease there ends" if later else ""
            tools.show.say(f"decision {decision}: {_TOLD[done.way]}{when}")
        return 0

    return in_session(arguments, work)
