"""Destroys what a plan made on servers. Needs no journal: what it does not take is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from placewire.agent.contract.messages import Destroy, Observation, Observe
from placewire.agent.contract.state import ApplyReport, Refusal
from placewire.controller.agents.agents import Agents
from placewire.controller.change.not_restored import not_restored, remedies
from placewire.controller.errors import (
    AgentProblem,
    AgentUnreachable,
    JournalFailed,
    PlacewireError,
)
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Decision, Journal, removed_on, to_remove_on
from placewire.controller.story.tools import Tools

_OBSERVE_SECONDS = 10.0


class Asked(NamedTuple):
    """What servers answered to a destroy. problem: why it is not done on all of them. untouched:
    each refused, or none was asked, and each has in force what it had."""

    reports: Mapping[str, ApplyReport]
    problem: PlacewireError | None
    untouched: bool


async def destroyed(plan: Plan, servers: Sequence[str], tools: Tools) -> Mapping[str, ApplyReport]:
    """The reports by server. Raises RestoreFailed where something is left, AgentProblem where an
    agent does not answer, or where every one refuses and nothing was changed."""
    journal = tools.journal
    # On some servers only, the decision stays in force on the others.
    all_of_plan = {server.name for server in plan.cluster.servers} <= set(servers)
    latest = _latest(journal, plan.name, tools)
    if latest is not None:
        detail = to_remove_on(servers, all_of_plan=all_of_plan)
        journal.note(latest.id, "destroy decided", detail=detail)
    asked = await asked_to_destroy(plan.name, servers, tools.agents, journal)
    if asked.problem is not None:
        if asked.untouched and latest is not None:
            journal.note(latest.id, "destroy refused")
        raise asked.problem
    if latest is not None:
        note_destroyed(journal, latest.id, removed_on(asked.reports), all_of_plan=all_of_plan)
    return asked.reports


async def asked_to_destroy(
    plan_name: str, servers: Sequence[str], agents: Agents, journal: Journal
) -> Asked:
    """Asks the servers to destroy the plan. The journal gets to know where nothing of it is left,
    whatever became of the others."""
    problem: PlacewireError | None = None
    reports: Mapping[str, ApplyReport]
    try:
        requests = dict.fromkeys(servers, Destroy(plan_name=plan_name))
        reports = await agents.ask_all(requests, ApplyReport, timeout_seconds=60)
    except AgentProblem as error:
        reports, problem = error.answered, error
    left = {server: r.refusals for server, r in reports.items() if not r.succeeded}
    done = [server for server in reports if server not in left]
    journal.note_removals(plan_name, done)
    # An agent that did not answer may be at it.
    failed = problem is not None or bool(left)
    untouched = failed and not done and not isinstance(problem, AgentUnreachable)
    untouched = untouched and await _have_in_force(servers, agents)
    if problem is None and left:
        problem = _refused(left) if untouched else not_restored(left)
    return Asked(reports, problem, untouched)


def note_destroyed(journal: Journal, decision: int, detail: str, *, all_of_plan: bool) -> None:
    journal.note(decision, "destroyed" if all_of_plan else "destroyed in part", detail=detail)


async def _have_in_force(servers: Sequence[str], agents: Agents) -> bool:
    """Whether every server still has a state in force: a destroy that was begun is not, even where
    it failed."""
    requests = dict.fromkeys(servers, Observe())
    try:
        seen = await agents.ask_all(requests, Observation, timeout_seconds=_OBSERVE_SECONDS)
    except AgentProblem:
        return False
    return all(one.lease.is_in_force for one in seen.values())


def _refused(left: Mapping[str, Sequence[Refusal]]) -> AgentProblem:
    told = "; ".join(f"{s} {one.where}: {one.what}" for s, some in left.items() for one in some)
    return AgentProblem(
        f"every server refused, and nothing was changed: {told}",
        where=", ".join(left),
        remedy="; ".join([*remedies(left.values()), "then `controller destroy` again"]),
    )


def _latest(journal: Journal, plan_name: str, tools: Tools) -> Decision | None:
    try:
        decisions = journal.decisions()
    except JournalFailed as error:
        tools.show.say(f"{error}; the journal will not have that the plan was destroyed")
        return None
    return next((one for one in reversed(decisions) if one.plan_name == plan_name), None)
