"""Ends a change that a controller left open when it died: finishes or undoes it.

The journal says how far the change came. Where nothing was decided to be kept, each server would go
back by itself when its lease ends; recovery restores it at once. Where keeping or destroying was
decided, only some servers may know it, and only finishing it brings all to the same state.

Without a journal only the servers' leases are known, and what is under a lease is undone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from placewire.agent.contract.messages import (
    Observation,
    Observe,
    Request,
    Restore,
)
from placewire.agent.contract.state import ApplyReport, DesiredState, LeaseState
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
from placewire.controller.story.destruction import asked_to_destroy, note_destroyed
from placewire.controller.story.rollback import recorded_states, states_of
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
    before both, where the earlier one would only be undone, and no server may keep it.
    """
    restored_since = False
    for one in reversed([d for d in journal.decisions() if d.plan_name == plan_name]):
        if one.last_phase not in _SETTLED:
            if way_of(one) != "undo" or one.was_decided_to_keep or not restored_since:
                return one
        elif one.last_phase != "restored":
            return None
        restored_since = restored_since or one.last_phase == "restored"
    return None


def way_of(decision: Decision) -> Way:
    return _WAYS.get(decision.last_phase, "undo")


class Recovered(NamedTuple):
    """servers: all that the decision was ended on. by_lease: those of them that were not reached;
    they go back when their lease ends."""

    decision: Decision
    way: Way
    servers: tuple[str, ...]
    by_lease: tuple[str, ...]


async def recover(plan: Plan, agents: Agents, journal: Journal) -> Recovered | None:
    """Ends the decision that was left open; returns None where there is none.

    Raises AgentUnreachable where it cannot be ended on all servers: those that answer are then on
    one decision, which the next call brings to the others. Raises what NetworkChange raises.
    """
    if (decision := left_open(journal, plan.name)) is None:
        return None
    return await uninterruptible(_ended(decision, plan, agents, journal))


async def _ended(decision: Decision, plan: Plan, agents: Agents, journal: Journal) -> Recovered:
    way = way_of(decision)
    servers = _servers(decision, way, journal)
    missing: Sequence[str] = ()
    try:
        await agents.wait_for(list(servers), timeout_seconds=_PRESENT_SECONDS)
    except AgentUnreachable as problem:
        missing = problem.servers
    present = [server for server in servers if server not in missing]
    # A missing server needs no other call where its lease undoes what was staged.
    by_lease = way == "undo" and not decision.was_decided_to_keep
    if missing and not present and not by_lease:
        raise _not_ended(missing, decision.id)
    made: int | None = None
    if way == "finish":
        made = await _kept_anew(states_of(journal, decision, plan), missing, agents, journal)
    elif way == "destroy":
        asked = await asked_to_destroy(plan.name, present, agents, journal)
        if asked.problem is not None:
            raise asked.problem
    else:
        made = await _undone(decision, missing, agents, journal)
    if missing and not by_lease and made is None:
        raise _not_ended(missing, decision.id)
    detail = "by recovery" if made is None else f"by recovery, as decision {made}"
    if way == "destroy":
        note_destroyed(
            journal, decision.id, f"{detail}, {removed_on(present)}",
            all_of_plan=not decision.destroy_is_partial,
        )  # fmt: skip
    else:
        journal.note(decision.id, "finished" if way == "finish" else "restored", detail=detail)
    if missing and made is not None:  # It takes the place of this decision, and is due there.
        raise _not_ended(missing, made)
    return Recovered(decision, way, servers, tuple(missing))


def _servers(decision: Decision, way: Way, journal: Journal) -> tuple[str, ...]:
    if way == "finish":
        return journal.servers_to_keep(decision)
    return decision.to_destroy if way == "destroy" else tuple(decision.generations)


def _not_ended(missing: Collection[str], decision: int) -> AgentUnreachable:
    return AgentUnreachable([*missing], why=f"decision {decision} is not ended there")


async def _undone(
    decision: Decision, missing: Collection[str], agents: Agents, journal: Journal
) -> int | None:
    """Returns the decision that was made to undo this one; None where none was needed.

    A server restores by itself what was in force before this decision, unless a later one was
    staged over it: for that, it forgets what is beneath a state that it keeps. It is then told that
    state again, as the journal has it.
    """
    generations, former = decision.generations, _former_states(decision, journal)
    if former and missing and not {*missing} < former.keys():
        # What is made below is kept, and the journal would no longer name this decision.
        raise _not_ended(missing, decision.id)
    rest = {s: Restore(generation=g) for s, g in generations.items() if s not in former}
    await _all_done(agents, {s: request for s, request in rest.items() if s not in missing})
    return await _kept_anew(former, missing, agents, journal) if former else None


def _former_states(decision: Decision, journal: Journal) -> Mapping[str, DesiredState]:
    """By server, what was in force before this decision, where no agent may know it any more."""
    own = decision.generations.keys()
    later = [one for one in journal.decisions() if one.id > decision.id]
    if not decision.was_decided_to_keep or not any(own & one.generations.keys() for one in later):
        return {}
    held = journal.in_force(decision.plan_name, before=decision.id)
    numbers = {server: held[server] for server in own if server in held}
    recorded = {number: recorded_states(journal, number) for number in {*numbers.values()}}
    # The new decision gets the name of the newest.
    newest_first = sorted(numbers, key=lambda server: -numbers[server])
    return {server: recorded[numbers[server]][server] for server in newest_first}


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


async def _kept_anew(
    states: Mapping[str, DesiredState], missing: Collection[str], agents: Agents, journal: Journal
) -> int:
    """Makes these states a new decision, which is kept once the missing servers have it, too.
    Returns its number. Where a state is in force already, only its generation changes."""
    there = {server: state for server, state in states.items() if server not in missing}
    away = {server: state for server, state in states.items() if server in missing}
    desired = with_next_generations(journal, agents, there)
    async with NetworkChange(agents, journal, desired, away=away) as change:
        await change.stage()
        await change.commit()
        await change.keep()
    return change.decision


async def _all_done(agents: Agents, requests: Mapping[str, Request]) -> None:
    reports = await agents.ask_all(requests, ApplyReport, timeout_seconds=60)
    left = {server: r.refusals for server, r in reports.items() if not r.succeeded}
    if left:
        raise not_restored(left)
