"""Destroys what a plan made on servers. Needs no journal: what it does not take is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.agent.contract.messages import Destroy
from placewire.agent.contract.state import ApplyReport
from placewire.controller.change.not_restored import not_restored
from placewire.controller.errors import JournalFailed
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Decision, Journal, removed_on, to_remove_on
from placewire.controller.story.tools import Tools


async def destroyed(plan: Plan, servers: Sequence[str], tools: Tools) -> Mapping[str, ApplyReport]:
    """The reports by server. Raises RestoreFailed where something is left, AgentProblem where an
    agent does not answer."""
    journal, all_of_plan = tools.journal, {server.name for server in plan.cluster.servers}
    # On some servers only, the decision stays in force on the others.
    latest = _latest(journal, plan.name, tools) if all_of_plan <= set(servers) else None
    if latest is not None:
        journal.note(latest.id, "destroy decided", detail=to_remove_on(servers))
    reports = await tools.agents.ask_all(
        dict.fromkeys(servers, Destroy(plan_name=plan.name)), ApplyReport, timeout_seconds=60
    )
    left = {server: r.refusals for server, r in reports.items() if not r.succeeded}
    journal.note_removals(plan.name, [server for server in reports if server not in left])
    if left:
        raise not_restored(left)
    if latest is not None:
        journal.note(latest.id, "destroyed", detail=removed_on(reports))
    return reports


def _latest(journal: Journal, plan_name: str, tools: Tools) -> Decision | None:
    try:
        decisions = journal.decisions()
    except JournalFailed as error:
        tools.show.say(f"{error}; the journal will not have that the plan was destroyed")
        return None
    return next((one for one in reversed(decisions) if one.plan_name == plan_name), None)
