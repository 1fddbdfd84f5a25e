"""Destroys what a plan made on servers. Needs no journal: what it does not take is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from placewire.agent.contract.messages import Destroy
from placewire.agent.contract.state import ApplyReport, LeaseState, Refusal
from placewire.controller.agent_advice import give_up, leave_out
from placewire.controller.agents.agents import Agents
from placewire.controller.change.not_restored import not_restored, remedies
from placewire.controller.errors import (
    AgentProblem,
    AgentUnreachable,
    JournalFailed,
    PlacewireError,
    UsageError,
)
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Decision, Journal, removed_on, to_remove_on
from placewire.controller.story.held import (
    about_carried,
    answered_leases,
    carried_by_others,
    words_of,
)
from placewire.controller.story.open_decision import left_open, way_of
from placewire.controller.story.tools import Tools


class Asked(NamedTuple):
    """What servers answered to a destroy. problem: why it is not done on all of them; it says what
    each holds now. untouched: each refused, or none was asked, and each has in force what it
    had."""

    reports: Mapping[str, ApplyReport]
    problem: PlacewireError | None
    untouched: bool


async def others_on(
    plan_name: str, servers: Sequence[str], agents: Agents, journal: Journal
) -> dict[str, str]:
    """By server, the name of another plan that it says to carry. Raises AgentProblem where each of
    them carries one, and the journal has nothing of this plan to be given up. To be asked before
    anything of the plan is ended."""
    others = carried_by_others(await answered_leases(agents, servers), plan_name)
    if len(others) == len(servers) and not _has_to_give_up(journal, plan_name, servers):
        raise AgentProblem(
            f"nothing of plan {plan_name!r} is there, and nothing was changed",
            where=", ".join(servers),
            remedy=about_carried(others, plan_name),
        )
    return others


def _has_to_give_up(journal: Journal, plan_name: str, servers: Sequence[str]) -> bool:
    """Whether, by the journal, one of these servers keeps the plan, or is to have it by a decision
    that was left open, which recovery would finish later. False where the journal cannot be read.
    """
    try:
        on = journal.holding(plan_name)
        if (found := left_open(journal, plan_name)) is not None:
            on = on.union(journal.servers_to_keep(found), found.to_destroy)
    except JournalFailed:
        return False
    return not on.isdisjoint(servers)


async def destroyed(
    plan: Plan,
    servers: Sequence[str],
    tools: Tools,
    others: Mapping[str, str] = MappingProxyType({}),
) -> Mapping[str, ApplyReport]:
    """The reports by server. others: of `others_on`; these servers are not asked, and have none.

    Raises RestoreFailed where something is left, AgentProblem where an agent does not answer, or
    where every one refuses and nothing was changed."""
    journal = tools.journal
    # On some servers only, the decision stays in force on the others.
    all_of_plan = _all_of(plan, servers)
    latest = _latest(journal, plan.name, tools)
    if latest is not None:
        detail = to_remove_on(servers, all_of_plan=all_of_plan)
        journal.note(latest.id, "destroy decided", detail=detail)
    asked = await asked_to_destroy(plan.name, servers, tools.agents, journal, others)
    if asked.problem is not None:
        if asked.untouched and latest is not None:
            journal.note(latest.id, "destroy refused")
        raise asked.problem
    if latest is not None:
        note_destroyed(journal, latest.id, removed_on(servers), all_of_plan=all_of_plan)
    return asked.reports


async def asked_to_destroy(
    plan_name: str,
    servers: Sequence[str],
    agents: Agents,
    journal: Journal,
    others: Mapping[str, str] = MappingProxyType({}),
) -> Asked:
    """Asks the servers to destroy the plan, but those that carry another. The journal gets to know
    where nothing of it is left, whatever became of the others."""
    problem: PlacewireError | None = None
    reports: Mapping[str, ApplyReport]
    asked = [server for server in servers if server not in others]
    try:
        requests = dict.fromkeys(asked, Destroy(plan_name=plan_name))
        reports = await agents.ask_all(requests, ApplyReport, timeout_seconds=60)
    except AgentProblem as error:
        reports, problem = error.answered, error
    left = {server: r.refusals for server, r in reports.items() if not r.succeeded}
    done = [server for server in reports if server not in left]
    journal.note_removals(plan_name, [*done, *others])
    if problem is None and not left:
        return Asked(reports, None, untouched=False)
    held = await answered_leases(agents, asked)
    # An agent that did not answer may be at it. A destroy that was begun has nothing in force any
    # more, even where it failed.
    untouched = not done and not isinstance(problem, AgentUnreachable)
    untouched = untouched and all(s in held and held[s].is_in_force for s in asked)
    if problem is None:
        problem = _refused(left) if untouched else not_restored(left)
    problem.holds = {server: _now(server, held.get(server), done) for server in asked}
    if not untouched:
        rest = ", ".join(server for server in asked if server not in done)
        problem.remedy += (
            f"; then `controller destroy` or `controller recover` again, which ends it on {rest}"
        )
    if isinstance(problem, AgentUnreachable):
        problem.remedy += f"; {give_up(problem.servers)}"
    return Asked(reports, problem, untouched)


def require_forgettable(
    plan: Plan, servers: Sequence[str], present: Sequence[str], journal: Journal
) -> None:
    """present: those of these servers whose agents are there. Raises UsageError where one is, where
    the journal has nothing of the plan on one, and where recovery would wait for one all the same.
    """
    if present:
        raise UsageError(
            "its agent is there, and nothing was forgotten",
            where=", ".join(present),
            remedy="`controller destroy PLAN --server SERVER` takes the plan's network away there; "
            "--forget is for servers that never come back",
        )
    if nothing := [s for s in servers if not _has_to_give_up(journal, plan.name, [s])]:
        raise UsageError(
            f"the journal has nothing of plan {plan.name!r} there that could be forgotten",
            where=", ".join(nothing),
            remedy="`controller status PLAN` names the servers that keep it",
        )
    found = left_open(journal, plan.name)
    if found is None or way_of(found) == "destroy" or not found.was_decided_to_keep:
        return
    of_it = {*found.generations, *journal.servers_to_keep(found)}
    ends_it = _all_of(plan, servers) and of_it <= set(servers)
    if not ends_it and (due := [server for server in servers if server in of_it]):
        raise UsageError(
            f"decision {found.id}, which was to be kept there, was left open: nothing was "
            "forgotten, because recovery would wait for it all the same",
            where=", ".join(due),
            remedy=f"{leave_out()}; then forget again",
        )


def about_forgetting(servers: Sequence[str]) -> str:
    """What it means that these servers are forgotten."""
    named = ", ".join(servers)
    return (
        f"{named}: no agent is asked, and only the journal changes. Should a server come back with "
        "its disk, its agent puts the plan's network in force again, and keeps it: commands then "
        "name that server as before, and `controller destroy PLAN --server SERVER` takes it away"
    )


def forget(plan: Plan, servers: Sequence[str], journal: Journal) -> None:
    """Records without any agent's answer that nothing of the plan is to be undone on these servers
    any more. Raises JournalFailed."""
    mine = [one for one in journal.decisions() if one.plan_name == plan.name]
    all_of_plan = _all_of(plan, servers)
    journal.decide(
        mine[-1].id, "destroy decided", detail=to_remove_on(servers, all_of_plan=all_of_plan)
    )
    journal.remove(plan.name, servers)
    detail = f"forgotten, {removed_on(servers)}"
    note_destroyed(journal, mine[-1].id, detail, all_of_plan=all_of_plan)


def note_destroyed(journal: Journal, decision: int, detail: str, *, all_of_plan: bool) -> None:
    journal.note(decision, "destroyed" if all_of_plan else "destroyed in part", detail=detail)


def _all_of(plan: Plan, servers: Sequence[str]) -> bool:
    return {server.name for server in plan.cluster.servers} <= set(servers)


def _now(server: str, lease: LeaseState | None, done: Sequence[str]) -> str:
    if server in done:
        return "nothing of the plan is left"
    return "does not say what it holds" if lease is None else words_of(lease)


def _refused(left: Mapping[str, Sequence[Refusal]]) -> AgentProblem:
    told = "; ".join(f"{s} {one.where}: {one.what}" for s, some in left.items() for one in some)
    return AgentProblem(
        f"every server refused, and no network was changed: {told}",
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
