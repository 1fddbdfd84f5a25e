"""Ends a change that a controller left open when it died: finishes or undoes it.

The journal says how far the change came. Where nothing was decided to be kept, each server would go
back by itself when its lease ends; recovery restores it at once. Where keeping or destroying was
decided, only some servers may know it, and only finishing it brings all to the same state.

The servers are asked first what they hold: a journal that does not know it, as after it was put
back from a backup, says nothing of what is to be done. A server that carries another plan by now
has nothing of this one, and is passed over.

Without a journal only the servers' leases are known, and what is under a lease is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from placewire.agent.contract.messages import Request, Restore
from placewire.agent.contract.state import ApplyReport, DesiredState
from placewire.controller.agent_advice import find_out_why, give_up, leave_out
from placewire.controller.agents.agents import Agents
from placewire.controller.change.change import NetworkChange
from placewire.controller.change.generations import with_next_generations
from placewire.controller.change.not_restored import not_restored
from placewire.controller.errors import AgentProblem, AgentUnreachable, JournalFailed
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Decision, Journal, removed_on
from placewire.controller.story.destruction import asked_to_destroy, note_destroyed
from placewire.controller.story.held import (
    about_carried,
    answered_leases,
    carried_by_others,
    leases_on,
)
from placewire.controller.story.open_decision import is_over, left_open, way_of
from placewire.controller.story.rollback import recorded_states, states_of
from placewire.controller.story.what_is_known import Way, known_by, require_known
from placewire.controller.uninterruptible import told_uninterruptible

_PRESENT_SECONDS = 5.0
# What an interrupt means meanwhile.
_ON_ITS_WAY = (
    "recovery cannot be stopped halfway: it goes on until the servers are on one decision, and "
    "says what came of it"
)


class Examined(NamedTuple):
    """What is to be done about a decision that was left open, as its servers hold it. missing: of
    its servers, those that were not reached. others: those that carry another plan, by its name.
    over: whether none of them holds anything of it any more, so that it is only to be recorded."""

    decision: Decision
    way: Way
    servers: tuple[str, ...]
    missing: tuple[str, ...]
    others: Mapping[str, str]
    over: bool


class Recovered(NamedTuple):
    """servers: all that the decision was ended on. by_lease: those of them that were not reached;
    they go back when their lease ends. others: as in Examined; nothing was done there."""

    decision: Decision
    way: Way
    servers: tuple[str, ...]
    by_lease: tuple[str, ...]
    others: Mapping[str, str] = MappingProxyType({})


async def examine(plan: Plan, agents: Agents, journal: Journal) -> Examined | None:
    """Asks the servers what they hold; changes nothing. Returns None where no decision was left
    open. Raises JournalFailed where the journal does not know what they hold; AgentProblem where
    it can be ended on none of them; UsageError where what is to be kept is for other servers than
    the plan has."""
    decision = left_open(journal, plan.name)
    way, servers = None, tuple(server.name for server in plan.cluster.servers)
    if decision is not None:
        way = way_of(decision)
        servers = _servers(decision, way, journal)
    absent = await agents.missing(list(servers), timeout_seconds=_PRESENT_SECONDS)
    leases = await answered_leases(agents, [s for s in servers if s not in absent])
    known = known_by(journal, plan.name)
    if decision is not None and way == "destroy":
        # A server that was destroyed since, or forgotten, is not waited for.
        gone = {s for s, since in known.removed.items() if since >= decision.id and s not in leases}
        servers = tuple(server for server in servers if server not in gone)
    # Nothing is done to a server that does not say what it holds.
    missing = tuple(server for server in servers if server not in leases)
    require_known(plan.name, known, leases, way)
    if decision is None or way is None:
        return None
    others = carried_by_others(leases, plan.name)
    reached = [s for s in servers if s not in missing and not (way == "finish" and s in others)]
    if servers and not reached and not _ends_by_lease(decision, way):
        raise _not_ended(missing, others, plan, decision.id, way)
    if way == "finish":
        states_of(journal, decision, plan)
    return Examined(decision, way, servers, missing, others, is_over(decision, leases))


def _ends_by_lease(decision: Decision, way: Way) -> bool:
    """Whether a missing server needs no other call: its lease undoes what was staged."""
    return way == "undo" and not decision.was_decided_to_keep


async def recover(
    plan: Plan,
    agents: Agents,
    journal: Journal,
    tell: Callable[[Recovered], None] = lambda done: None,
) -> Recovered | None:
    """Ends the decision that was left open; returns None where there is none. tell: gets what is
    returned before an interrupt is heard.

    Raises AgentUnreachable where it cannot be ended on all servers: those that answer are then on
    one decision, which the next call brings to the others. Raises AgentProblem in the same way
    where a server carries another plan and this one is to be kept there. Raises what `examine` and
    NetworkChange raise.
    """
    if (examined := await examine(plan, agents, journal)) is None:
        return None

    async def ended_and_told() -> Recovered:
        done = await _ended(examined, plan, agents, journal)
        tell(done)
        return done

    ended = f"decision {examined.decision.id} is ended by recovery ({examined.way})"
    return await told_uninterruptible(
        ended_and_told(),
        means=_ON_ITS_WAY,
        then=f"{ended}; `controller recover` again ends what else was left open",
    )


async def _ended(examined: Examined, plan: Plan, agents: Agents, journal: Journal) -> Recovered:
    decision, way, servers, missing, others, _ = examined
    # What is to be kept cannot come to a server that carries another plan.
    away = (*missing, *others) if way == "finish" else missing
    present = [server for server in servers if server not in away and server not in others]
    by_lease = _ends_by_lease(decision, way)
    made: int | None = None
    if way == "finish":
        made = await _kept_anew(states_of(journal, decision, plan), away, agents, journal)
    elif way == "destroy":
        asked = await asked_to_destroy(plan.name, [*present, *others], agents, journal, others)
        if asked.problem is not None:
            raise asked.problem
    else:
        made = await _undone(examined, plan, agents, journal)
    if missing and not by_lease and made is None:
        raise _not_ended(missing, {}, plan, decision.id, way)
    detail = "by recovery" if made is None else f"by recovery, as decision {made}"
    if way == "destroy":
        note_destroyed(
            journal, decision.id, f"{detail}, {removed_on([*present, *others])}",
            all_of_plan=not decision.destroy_is_partial,
        )  # fmt: skip
    else:
        journal.note(decision.id, "finished" if way == "finish" else "restored", detail=detail)
    if away and made is not None:  # It takes the place of this decision, and is due there.
        raise _not_ended(missing, others if way == "finish" else {}, plan, made, way)
    return Recovered(decision, way, servers, missing, others)


def _servers(decision: Decision, way: Way, journal: Journal) -> tuple[str, ...]:
    if way == "finish":
        return journal.servers_to_keep(decision)
    return decision.to_destroy if way == "destroy" else tuple(decision.generations)


def _not_ended(
    missing: Collection[str], others: Mapping[str, str], plan: Plan, decision: int, way: Way
) -> AgentProblem:
    """others: servers to which it cannot be brought while they carry another plan."""
    why = f"decision {decision} is not ended there"
    if not others:
        first = "" if way == "destroy" else f"{leave_out()}; then "
        remedy = f"{find_out_why([*missing])}; {give_up([*missing], first=first)}"
        return AgentUnreachable([*missing], why=why, remedy=remedy)
    lost = f"; {', '.join(missing)} did not answer" if missing else ""
    return AgentProblem(
        f"{why}: another plan is in force there{lost}",
        where=", ".join([*others, *missing]),
        remedy=f"{about_carried(others, plan.name)}; then `controller recover` again. Or give "
        f"plan {plan.name!r} up: `controller destroy` removes it from its other servers, and ends "
        "the decision",
    )


async def _undone(examined: Examined, plan: Plan, agents: Agents, journal: Journal) -> int | None:
    """Returns the decision that was made to undo this one; None where none was needed.

    A server restores by itself what was in force before this decision, unless a later one was
    staged over it: for that, it forgets what is beneath a state that it keeps. It is then told that
    state again, as the journal has it.
    """
    decision, missing, others = examined.decision, examined.missing, examined.others
    generations = {s: g for s, g in decision.generations.items() if s not in others}
    former = {s: d for s, d in _former_states(decision, journal).items() if s not in others}
    if former and missing and not {*missing} < former.keys():
        # What is made below is kept, and the journal would no longer name this decision.
        raise _not_ended(missing, {}, plan, decision.id, "undo")
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
        for server, lease in (await leases_on(agents, servers)).items()
        if lease.plan_name == plan.name and not (lease.is_idle or lease.is_kept)
    }
    await told_uninterruptible(
        _all_done(agents, {s: Restore(generation=g) for s, g in held.items()}),
        means=_ON_ITS_WAY,
        then="what was held under a lease is undone",
    )
    on: dict[str | None, list[str]] = {}
    leases = await leases_on(agents, servers)
    others = carried_by_others(leases, plan.name)
    for server, lease in leases.items():
        if server in others:
            continue
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
