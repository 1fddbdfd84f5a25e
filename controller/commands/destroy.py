"""`controller destroy PLAN`: removes all that Placewire made on the plan's servers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_json
from placewire.controller.errors import LaunchFailed, RestoreFailed, UsageError, restore_by_hand

if TYPE_CHECKING:
    from placewire.agent.contract.state import ApplyReport
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "remove all that Placewire made on the plan's servers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask before changing servers")


def run(arguments: argparse.Namespace) -> int:
    async def destroy(plan: Plan, tools: Tools) -> int:
        from placewire.controller.story.job_run import end_left_ranks
        from placewire.controller.uninterruptible import uninterruptible

        servers = [server.name for server in plan.cluster.servers]
        with tools.journal.exclusive():
            await tools.agents.wait_for(servers, timeout_seconds=10)
            if not await confirmed(yes=arguments.yes):
                raise UsageError("not confirmed; nothing was changed")
            try:
                await end_left_ranks(tools)
            except LaunchFailed as problem:
                tools.show.say(
                    f"could not look for ranks that still run: {problem}; they end with their lease"
                )
            reports = await uninterruptible(_destroyed(plan.name, servers, tools))
        counts = {server: len(report.changes) for server, report in reports.items()}
        if arguments.json:
            print_json({"changes": counts})
        else:
            tools.show.say(
                "removed: " + ", ".join(f"{server} {count}" for server, count in counts.items())
                + " changes; every server is as it was before Placewire, and was read back"
            )  # fmt: skip
        return 0

    return in_session(arguments, destroy)


async def _destroyed(
    plan_name: str, servers: Sequence[str], tools: Tools
) -> Mapping[str, ApplyReport]:
    """The reports by server. Raises RestoreFailed where something is left, AgentProblem where an
    agent does not answer."""
    from placewire.agent.contract.messages import Destroy
    from placewire.agent.contract.state import ApplyReport

    latest = next(
        (d for d in reversed(tools.journal.decisions()) if d.plan_name == plan_name), None
    )
    if latest is not None:
        tools.journal.decide(latest.id, "destroy decided")
    reports = await tools.agents.ask_all(
        dict.fromkeys(servers, Destroy(plan_name=plan_name)), ApplyReport, timeout_seconds=60
    )
    left = {server: r.refusals for server, r in reports.items() if not r.succeeded}
    if left:
        raise RestoreFailed(
            "; ".join(refusal.what for some in left.values() for refusal in some),
            where=", ".join(left),
            remedy=restore_by_hand(list(left)),
        )
    if latest is not None:
        tools.journal.decide(latest.id, "destroyed")
    return reports
