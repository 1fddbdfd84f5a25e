"""`controller status PLAN`: shows what is in force on every server of the plan."""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_full, add_plan, plan_name, state_dir_of
from placewire.controller.commands.lab_advice import add_lab_advice
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import AgentUnreachable, ChangeUnderWay, LaunchFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewire.controller.launch.launcher import RunningProgram
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "show what is in force on every server of the plan"

# So many of what ranks printed last are shown while a job runs.
_LAST_LINES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_full(parser)


def run(arguments: argparse.Namespace) -> int:
    async def status(plan: Plan, tools: Tools) -> int:
        from placewire.controller.change.in_force import observed, read_back
        from placewire.controller.launch.job_status import job_status
        from placewire.controller.records.decision_in_force import decision_in_force
        from placewire.controller.story.dropped_servers import dropped_servers
        from placewire.controller.story.left_ranks import left_ranks
        from placewire.controller.story.open_decision import about_open, is_over, left_open

        observations = await observed(tools.agents, plan)
        found = await read_back(tools.agents, observations)
        ranks: Sequence[RunningProgram] | LaunchFailed
        try:
            ranks = await left_ranks(tools.launcher)
        except LaunchFailed as problem:
            ranks = problem
        job = await job_status(plan, ranks, tools.journal)
        dropped = await dropped_servers(plan, tools)
        left = None if tools.journal.change_lock.holder() else left_open(tools.journal, plan.name)
        leases = {server: one.lease for server, one in observations.items() if one is not None}
        stands = decision_in_force(plan.name, tools.journal.decisions(), leases)
        if arguments.json:
            answers = {
                server: None
                if answer is None
                else answer.model_dump(mode="json")
                | {"read_back": server in found and found[server].model_dump(mode="json")}
                for server, answer in observations.items()
            }
            open_decision = None if left is None else {
                "decision": left.id, "phase": left.last_phase, "over": is_over(left, leases),
            }  # fmt: skip
            print_json({
                "servers": answers, "standing": asdict(stands), "job": asdict(job),
                "left_open": open_decision, "dropped": dropped,
            })  # fmt: skip
        else:
            tools.show.status(observations, found, job)
            tools.show.say(stands.why)
            if silent := [server for server, answer in observations.items() if answer is None]:
                unanswered = AgentUnreachable(silent)
                add_lab_advice(unanswered, plan, arguments.plan)
                tools.show.say(str(unanswered))
            for line in dropped:
                tools.show.say(line)
            if left is not None:
                tools.show.say(about_open(left, leases, str(arguments.plan)))
        return AgentUnreachable.exit_code if None in observations.values() else 0

    try:
        return in_session(
            arguments, status, needs_journal=False, makes_journal=False,
            every_change=arguments.full,
        )  # fmt: skip
    except ChangeUnderWay as change:
        return _tell_of(change, arguments)


def _tell_of(change: ChangeUnderWay, arguments: argparse.Namespace) -> int:
    """Tells of a change under way what the journal and the log know: agents dial in to the command
    that makes it, and cannot be asked."""
    from placewire.controller.records.journal import Journal
    from placewire.controller.records.phase_words import phase_in_words
    from placewire.controller.records.plan_files import is_written
    from placewire.controller.records.run_log import printed, runs_of
    from placewire.controller.show.story import Show

    name = plan_name(str(arguments.plan))
    show = Show(to_error=arguments.json)
    state_dir = state_dir_of(arguments, name)
    with Journal.open(state_dir, show.say, needed=False, makes=False) as journal:
        decisions = journal.decisions()
    log = next((log for log in runs_of(state_dir / "logs", name)[-1:]), None)
    lines = []
    if log is not None and is_written(log):
        with log.open(encoding="utf-8", errors="replace", newline="\n") as file:
            lines = list(deque(printed(file), _LAST_LINES))
    latest = None
    if decisions:
        last = decisions[-1]
        latest = {"decision": last.id, "plan": last.plan_name, "phase": last.last_phase}
    if arguments.json:
        document = {"holder": change.holder, "latest": latest, "lines": list(map(asdict, lines))}
        print_json({"under_way": document})
        return 0
    show.say(f"a change is under way: {change.holder}; agents dial in to that command")
    if latest is not None:
        became = phase_in_words(decisions[-1].last_phase)
        show.say("the latest decision is {decision}, of plan {plan}: ".format(**latest) + became)
    for line in lines:
        show.say(f"{line.time} rank {line.rank} | {line.text}")
    if lines:
        show.say(f"`controller logs {name} --follow` goes on with what ranks print")
    return 0
