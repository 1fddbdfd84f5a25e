"""`controller status PLAN`: shows what is in force on every server of the plan."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import AgentUnreachable, LaunchFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewire.controller.launch.launcher import RunningProgram
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "show what is in force on every server of the plan"

add_arguments = add_plan


def run(arguments: argparse.Namespace) -> int:
    async def status(plan: Plan, tools: Tools) -> int:
        from placewire.controller.change.in_force import observed, read_back
        from placewire.controller.launch.job_status import job_status
        from placewire.controller.records.decision_in_force import decision_in_force
        from placewire.controller.story.dropped_servers import dropped_servers
        from placewire.controller.story.left_ranks import left_ranks
        from placewire.controller.story.open_decision import left_open, way_of

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
            open_decision = left and {"decision": left.id, "phase": left.last_phase}
            print_json({
                "servers": answers, "standing": asdict(stands), "job": asdict(job),
                "left_open": open_decision, "dropped": dropped,
            })  # fmt: skip
        else:
            tools.show.status(observations, found, job)
            tools.show.say(stands.why)
            for line in dropped:
                tools.show.say(line)
            if left is not None:
                tools.show.say(
                    f"decision {left.id} was left at {left.last_phase!r} by a controller that is "
                    f"gone: `controller recover {arguments.plan}` would {way_of(left)} it"
                )
        return AgentUnreachable.exit_code if None in observations.values() else 0

    return in_session(arguments, status, needs_journal=False)
