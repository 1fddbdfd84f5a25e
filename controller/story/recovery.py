"""What a controller left that died in the middle of a change: finished, or undone.

The journal says how far it came. Nothing was kept yet: every server goes back by itself when its
lease ends, and here at once. Keeping, or destroying, was decided: some servers may have heard of it
and some not, and only finishing it brings them together again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel

from placewire.agent.contract.messages import Destroy, Restore
from placewire.agent.contract.state import ApplyReport
from placewire.controller.change.change import NetworkChange
from placewire.controller.change.generations import with_next_generations
from placewire.controller.errors import AgentUnreachable, RestoreFailed, restore_by_hand
from placewire.controller.story.rollback import states_of
from placewire.controller.uninterruptible import uninterruptible

if TYPE_CHECKING:
    from placewire.agent.contract.messages import Request
    from placewire.controller.agents.agents import Agents
    from placewire.controller.plan.plan import Plan
    from placewire.controller.records.journal import Decision, Journal

Way = Literal["finish", "undo", "destroy"]

# The last phase of a decision that nothing is left of to do.
_SETTLED = ("kept", "restored", "destroyed", "finished")
_WAYS: Mapping[str, Way] = {"keep decided": "finish", "destroy decided": "destroy"}
_PRESENT_SECONDS = 5.0


def left_open(journal: Journal, plan_name: str) -> Decision | None:
    """The plan's latest decision that was neither ended nor overtaken: by one that was kept; or,
    where there is only something to undo, by one that was restored, to what was there before both.
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
    """by_lease: servers that were not reached, and go back when their lease ends."""

    decision: Decision
    way: Way
    by_lease: tuple[str, ...]


async def recover(plan: Plan, agents: Agents, journal: Journal) -> Recovered | None:
    """What was left open and how it was ended; None where nothing was.

    Raises AgentUnreachable where it could not be ended everywhere: what can be reached is on one
    generation then, and the rest is due when this is called again. Raises what NetworkChange does.
    """
    if (decision := left_open(journal, plan.name)) is None:
        return None
    return await uninterruptible(_ended(decision, plan, agents, journal))


async def _ended(decision: Decision, plan: Plan, agents: Agents, journal: Journal) -> Recovered:
    servers = list(decision.generations)
    missing = await _missing(agents, servers)
    present = [server for server in servers if server not in missing]
    way = way_of(decision)
    if way == "finish":
        await _finish(plan, decision, present, agents, journal)
    elif way == "destroy":
        await _all_done(agents, dict.fromkeys(present, Destroy(plan_name=plan.name)))
    else:
        generations = decision.generations
        await _all_done(
            agents, {server: Restore(generation=generations[server]) for server in present}
        )
    # What was only staged is undone there by a lease.
    if missing and (way != "undo" or decision.was_decided_to_keep):
        raise AgentUnreachable(missing, why=f"decision {decision.id} is not ended there")
    ended = {"finish": "finished", "destroy": "destroyed", "undo": "restored"}[way]
    detail = "by recovery"
    if way == "finish" and present:
        detail += f", as decision {journal.decisions()[-1].id}"
    journal.decide(decision.id, ended, detail=detail)
    return Recovered(decision, way, tuple(missing))


async def _missing(agents: Agents, servers: Sequence[str]) -> Sequence[str]:
    try:
        await agents.wait_for(servers, timeout_seconds=_PRESENT_SECONDS)
    except AgentUnreachable as problem:
        return problem.servers
    return ()


async def _finish(
    plan: Plan, decision: Decision, servers: Sequence[str], agents: Agents, journal: Journal
) -> None:
    """Where it is in force already nothing changes but the generation."""
    states = states_of(journal, decision, plan)
    present = {server: states[server] for server in servers}
    desired = with_next_generations(journal, agents, present)
    if desired:
        async with NetworkChange(agents, journal, desired) as change:
            await change.stage()
            await change.commit()
            await change.keep()


async def _all_done(agents: Agents, requests: Mapping[str, Request]) -> None:
    reports: Mapping[str, BaseModel] = await agents.ask_all(
        requests, ApplyReport, timeout_seconds=60
    )
    left = {
        server: report.refusals
        for server, report in reports.items()
        if isinstance(report, ApplyReport) and not report.succeeded
    }
    if left:
        raise RestoreFailed(
            "; ".join(refusal.what for some in left.values() for refusal in some),
            where=", ".join(left),
            remedy=restore_by_hand(list(left)),
        )
