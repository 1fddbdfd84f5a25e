"""`controller destroy PLAN`: removes all that Placewire made on the plan's servers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from placewire.controller.commands.answers import DestroyAnswer
from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_json
from placewire.controller.errors import AgentUnreachable, UsageError
from placewire.controller.few_names import counts_in_words

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "remove all that Placewire made on the plan's servers"
_WAIT_SECONDS = 10.0
_ON_ITS_WAY = "a destroy cannot be stopped halfway: it goes on to its end, and says what came of it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument(
        "--server", action="append", metavar="SERVER",
        help="only on this one, which may have been taken out of the plan; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--forget", action="store_true",
        help="with --server: ask no agent; give up in the journal what a server had that never "
        "comes back",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask before changing servers")


def run(arguments: argparse.Namespace) -> int:
    if arguments.forget:
        return _run_to_forget(arguments)

    async def work(plan: Plan, tools: Tools) -> int:
        from placewire.controller.story.destruction import destroyed, others_on
        from placewire.controller.story.dropped_servers import dropped_servers
        from placewire.controller.story.held import about_carried, left_otherwise
        from placewire.controller.story.left_ranks import end_left_ranks_or_say
        from placewire.controller.uninterruptible import told_uninterruptible

        servers = _servers(plan, arguments.server)

        async def destroy_and_tell(others: Mapping[str, str]) -> None:
            reports = await destroyed(plan, servers, tools, others)
            counts = {server: len(report.changes) for server, report in reports.items()}
            otherwise = await left_otherwise(tools.agents, list(reports))
            if arguments.json:
                answer: DestroyAnswer = {"changes": counts, "others": dict(others)}
                if otherwise:
                    answer["not_as_before"] = otherwise
                print_json(answer)
            else:
                tools.show.say(_told(plan.name, counts, others, otherwise))

        with tools.journal.change_lock.exclusive():
            await _wait_for(servers, tools, of_plan=arguments.server is None)
            # No rank is ended before it is known that there is something of this plan to remove.
            others = await others_on(plan.name, servers, tools.agents, tools.journal)
            if others:
                tools.show.say(about_carried(others, plan.name))
            if not await confirmed(yes=arguments.yes):
                raise UsageError("not confirmed; nothing was changed")
            if arguments.server is None:  # Otherwise the plan stays in force elsewhere.
                await end_left_ranks_or_say(plan.name, tools)
            # What came of it is told before an interrupt is heard.
            gone = f"nothing of the plan is left on {', '.join(servers)}"
            await told_uninterruptible(destroy_and_tell(others), means=_ON_ITS_WAY, then=gone)
        for line in await dropped_servers(plan, tools, but=servers):
            tools.show.say(line)
        return 0

    return in_session(arguments, work, needs_journal=False)


async def _wait_for(servers: Sequence[str], tools: Tools, *, of_plan: bool) -> None:
    """Raises AgentUnreachable, which also says what to do about a server that never comes back."""
    from placewire.controller.agent_advice import give_up

    try:
        await tools.agents.wait_for(servers, timeout_seconds=_WAIT_SECONDS)
    except AgentUnreachable as error:
        first = "take it out of the plan's file and destroy again; then " if of_plan else ""
        error.remedy += f". Nothing was changed; {give_up(error.servers, first=first)}"
        raise


def _run_to_forget(arguments: argparse.Namespace) -> int:
    """Raises UsageError where no server is named: who forgets all of a plan has misspelt it."""
    if arguments.server is None:
        raise UsageError(
            "--forget needs --server", remedy="name each server that never comes back by --server"
        )

    async def work(plan: Plan, tools: Tools) -> int:
        from placewire.controller.story.destruction import (
            about_forgetting,
            forget,
            require_forgettable,
        )
        from placewire.controller.story.dropped_servers import dropped_servers

        servers = _servers(plan, arguments.server)
        with tools.journal.change_lock.exclusive():
            missing = await tools.agents.missing(servers, timeout_seconds=_WAIT_SECONDS)
            present = [server for server in servers if server not in missing]
            require_forgettable(plan, servers, present, tools.journal)
            tools.show.say(about_forgetting(servers))
            if not await confirmed(yes=arguments.yes, question="Forget what is there?"):
                raise UsageError("not confirmed; nothing was changed")
            forget(plan, servers, tools.journal)
        if arguments.json:
            print_json({"changes": {}, "others": {}, "forgotten": servers})
        else:
            tools.show.say(f"plan {plan.name!r} is given up on {', '.join(servers)}")
        for line in await dropped_servers(plan, tools, but=servers):
            tools.show.say(line)
        return 0

    return in_session(arguments, work)


def _told(
    plan_name: str,
    counts: Mapping[str, int],
    others: Mapping[str, str],
    otherwise: Mapping[str, str],
) -> str:
    """counts: of changes, by server that had the plan. others: servers with another plan.
    otherwise: by server, what is not as before."""
    each = counts_in_words(counts)
    but = "; ".join(f"{server}: {what}" for server, what in otherwise.items())
    but = f"; not as before: {but}" if but else ""
    if not others and not but:
        return (
            f"removed: {each} changes; every server is as it was before Placewire, and was read "
            "back"
        )
    if not others:
        return f"removed: {each} changes; every server was read back{but}"
    stays = f"another plan stays in force on {', '.join(others)}"
    if not counts:
        return f"nothing of plan {plan_name!r} was there, and it is given up there; {stays}"
    before = "read back" if but else "as before Placewire, and read back"
    return f"removed: {each} changes; {', '.join(counts)}: {before}; {stays}{but}"


def _servers(plan: Plan, wanted: Sequence[str] | None) -> list[str]:
    """Raises UsageError where one cannot be a server's name."""
    from placewire.optimizer.cluster_plan.values import server_name

    for name in wanted or ():
        try:
            server_name(name)
        except ValueError as error:
            raise UsageError(str(error), where="--server") from error
    return list(dict.fromkeys(wanted or [server.name for server in plan.cluster.servers]))
