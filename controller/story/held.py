"""What servers hold, as their agents say, before a command changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.agent.contract.messages import Observation, Observe
from placewire.agent.contract.state import LeaseState
from placewire.controller.agents.agents import Agents
from placewire.controller.errors import AgentProblem

_OBSERVE_SECONDS = 10.0


async def leases_on(agents: Agents, servers: Sequence[str]) -> dict[str, LeaseState]:
    """By server, in the order of `servers`. Raises AgentProblem where one does not answer."""
    asked = dict.fromkeys(servers, Observe())
    answers = await agents.ask_all(asked, Observation, timeout_seconds=_OBSERVE_SECONDS)
    return {server: answers[server].lease for server in servers}


async def answered_leases(agents: Agents, servers: Sequence[str]) -> dict[str, LeaseState]:
    """As `leases_on`, of those servers that answer."""
    try:
        return await leases_on(agents, servers)
    except AgentProblem as problem:
        seen: Mapping[str, Observation] = problem.answered
        return {server: seen[server].lease for server in servers if server in seen}


async def left_otherwise(agents: Agents, servers: Sequence[str]) -> dict[str, str]:
    """By server, what its agent says that an undo left otherwise than before, as a NIC that stays
    up because others use it by now. Of those servers that answer."""
    leases = await answered_leases(agents, servers)
    return {
        s: lease.detail for s, lease in leases.items() if lease.detail and not lease.is_unsettled
    }


def carried_by_others(leases: Mapping[str, LeaseState], plan_name: str) -> dict[str, str]:
    """By server, the name of another plan that it carries. A server carries one plan at a time: it
    has nothing of this one."""
    return {
        server: lease.plan_name
        for server, lease in leases.items()
        if not lease.is_idle and lease.plan_name not in (None, plan_name)
    }


def about_carried(others: Mapping[str, str], plan_name: str) -> str:
    """What is in force on these servers instead of the plan, and how to take it away."""
    each = "; ".join(f"{server} carries plan {name!r}" for server, name in others.items())
    return (
        f"{each}, and nothing of plan {plan_name!r}. To take it away there, run "
        "`controller destroy` with that plan's file; add `--server SERVER` to do so on that server "
        "alone"
    )


def words_of(lease: LeaseState) -> str:
    """What a server holds, in words."""
    if lease.is_idle:
        return "holds nothing"
    plan = "" if lease.plan_name is None else f" of plan {lease.plan_name!r}"
    until = "" if lease.is_kept else f", {lease.phase}"
    if lease.is_in_force and not lease.is_kept:
        until = f", {lease.phase} under a lease, which undoes it when it ends"
    return f"holds generation {lease.generation}{plan}{until}"
