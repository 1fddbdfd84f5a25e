"""`controller recover PLAN`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_json
from placewire.controller.errors import LaunchFailed, UsageError

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.recovery import Recovered
    from placewire.controller.story.tools import Tools

PURPOSE = "end what a controller left that died in the middle of a change"
_TOLD = {
    "finish": "keeping it was decided: it is kept on every server",
    "undo": "nothing is kept: every server is on its former state",
    "destroy": "destroying was decided: every server is as it was before",
}


def _told(done: Recovered) -> str:
    later = f", {', '.join(done.by_lease)} when the lease there ends" if done.by_lease else ""
    return _TOLD[done.way] + later


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    async def work(plan: Plan, tools: Tools) -> int:
        from placewire.controller.story.job_run import end_left_ranks
        from placewire.controller.story.recovery import left_open, recover, way_of

        with tools.journal.exclusive():
            if (found := left_open(tools.journal, plan.name)) is not None:
                tools.show.say(
                    f"decision {found.id} was left at {found.last_phase!r}: to {way_of(found)}"
                )
                if not await confirmed(yes=arguments.yes):
                    raise UsageError("not confirmed; nothing was changed")
                try:
                    await end_left_ranks(tools)
                except LaunchFailed as problem:
                    tools.show.say(f"ranks are not looked for: {problem}")
            done = await recover(plan, tools.agents, tools.journal)
        if arguments.json:
            document = None
            if done is not None:
                document = {
                    "decision": done.decision.id, "way": done.way, "by_lease": [*done.by_lease]
                }  # fmt: skip
            print_json(document)
        elif done is None:
            tools.show.say("nothing was left")
        else:
            tools.show.say(f"decision {done.decision.id}: {_told(done)}")
        return 0

    return in_session(arguments, work)
