"""Ends a change that a controller left open when it died: finishes or undoes it.

The journal says how far the change came. Where nothing was decided to be kept, each server would go
back by itself when its lease ends; recovery restores it at once. Where keeping or destroying was
decided, only some servers may know it, and only finishing it brings all to the same state.

Without a journal only the servers' leases are known, and what is under a lease is undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from placewire.agent.contract.messages import (
    Destroy,
    Observation,
    Observe,
    Request,
    Restore,
)
from placewire.agent.contract.state import ApplyReport, LeaseState
from placewire.controller.agents.agents import Agents
from placewire.controller.change.change import NetworkChange
from placewire.controller.change.generations import with_next_generations
from placewire.controller.change.not_restored import not_restored
from placewire.controller.errors import (
    AgentUnreachable,
    JournalFailed,
)
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Decision, Journal, removed_on
from placewire.controller.story.rollback import states_of
from placewire.controller.uninterruptible import uninterruptible

Way = Literal["finish", "undo", "destroy"]

# The last phases of decisions that leave nothing to do.
_SETTLED = ("kept", "restored", "destroyed", "finished")
_WAYS: Mapping[str, Way] = {"keep decided": "finish", "destroy decided": "destroy"}
_PRESENT_SECONDS = 5.0
_OBSERVE_SECONDS = 10.0


def left_open(journal: Journal, plan_name: str) -> Decision | None:
    """Returns the plan's latest decision that was neither ended nor overtaken.

    A later decision that was kept overtakes it. So does one that was restored, to what was in force
    before both, where the earlier one would only be undone.
    """
    restored_since = False
    for one in reversed([d for d in journal.decisions() if d.plan_name == plan_name]):
        if one.last_phase not in _SETTLED:
            if way_of(one) != "undo" or not restored_since:
                return one
        elif one.last_phase != "restored":
            return None
        restored_since = restored_since or one.last_phase == "restored"
    return None


def way_of(decision: Decision) -> Way:
    return _WAYS.get(decision.last_phase, "undo")


class Recovered(NamedTuple):
    """by_lease: servers that were not reached; they go back when their lease ends."""

    decision: Decision
    way: Way
    by_lease: tuple[str, ...]


async def recover(plan: Plan, agents: Agents, journal: Journal) -> Recovered | None:
    """Ends the decision that was left open; returns None where there is none.

    Raises AgentUnreachable where it cannot be ended on all servers: those that answer are then on
    one generation, and the next call ends it on the others. Raises what NetworkChange raises.
    """
    if (decision := left_open(journal, plan.name)) is None:
        return None
    return await uninterruptible(_ended(decision, plan, agents, journal))


async def _ended(decision: Decision, plan: Plan, agents: Agents, journal: Journal) -> Recovered:
    generations = decision.generations
    missing: Sequence[str] = ()
    try:
        await agents.wait_for(list(generations), timeout_seconds=_PRESENT_SECONDS)
    except AgentUnreachable as problem:
        missing = problem.servers
    present = [server for server in generations if server not in missing]
    way = way_of(decision)
    if way == "finish":
        await _finish(plan, decision, present, agents, journal)
    elif way == "destroy":
        await _all_done(agents, dict.fromkeys(present, Destroy(plan_name=plan.name)))
    else:
        await _all_done(agents, {s: Restore(generation=generations[s]) for s in present})
    # A missing server needs no other call where its lease undoes what was staged.
    if missing and (way != "undo" or decision.was_decided_to_keep):
        raise AgentUnreachable(missing, why=f"decision {decision.id} is not ended there")
    ended = {"finish": "finished", "destroy": "destroyed", "undo": "restored"}[way]
    detail = "by recovery"
    if way == "finish" and present:
        detail += f", as decision {journal.decisions()[-1].id}"
    if way == "destroy":
        journal.note_removals(plan.name, present)
        detail += f", {removed_on(present)}"
    journal.note(decision.id, ended, detail=detail)
    return Recovered(decision, way, tuple(missing))


async def recover_by_leases(plan: Plan, agents: Agents, why: str) -> tuple[str, ...]:
    """Undoes what servers of the plan hold under a lease; returns these servers. why: there is no
    journal.

    Raises JournalFailed where the servers are then on different decisions: which of them was to be
    kept is not known. Raises AgentUnreachable where a server does not answer.
    """
    servers = [server.name for server in plan.cluster.servers]
    await agents.wait_for(servers, timeout_seconds=_PRESENT_SECONDS)
    held = {
        server: lease.generation
        for server, lease in (await _leases(agents, servers)).items()
        if lease.plan_name == plan.name and not (lease.is_idle or lease.is_kept)
    }
    await uninterruptible(_all_done(agents, {s: Restore(generation=g) for s, g in held.items()}))
    on: dict[str | None, list[str]] = {}
    for server, lease in (await _leases(agents, servers)).items():
        digest = lease.plan_digest if lease.plan_name == plan.name else None
        on.setdefault(digest, []).append(server)
    if len(on) > 1:
        each = (f"{(digest or 'none')[:12]} on {', '.join(some)}" for digest, some in on.items())
        raise JournalFailed(
            f"{why}, so it is not known which decision was to be kept; in force are "
            f"{'; '.join(each)}",
            where=", ".join(servers),
            remedy="`controller destroy PLAN` removes the plan's network from every server; "
            "`controller apply PLAN` makes it on every server once the journal can be written",
        )
    return tuple(held)


async def _leases(agents: Agents, servers: Sequence[str]) -> dict[str, LeaseState]:
    asked = dict.fromkeys(servers, Observe())
    answers = await agents.ask_all(asked, Observation, timeout_seconds=_OBSERVE_SECONDS)
    return {server: answer.lease for server, answer in answers.items()}


async def _finish(
    plan: Plan, decision: Decision, servers: Sequence[str], agents: Agents, journal: Journal
) -> None:
    """Where the decision is in force already, only its generation changes."""
    states = states_of(journal, decision, plan)
    present = {server: states[server] for server in servers}
    desired = with_next_generations(journal, agents, present)
    if desired:
        async with NetworkChange(agents, journal, desired) as change:
            await change.stage()
            await change.commit()
            await change.keep()


async def _all_done(agents: Agents, requests: Mapping[str, Request]) -> None:
    reports = await agents.ask_all(requests, ApplyReport, timeout_seconds=60)
    left = {server: r.refusals for server, r in reports.items() if not r.succeeded}
    if left:
        raise not_restored(left)
