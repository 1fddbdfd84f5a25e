"""Which decision a plan's servers are on, and why that one: what `controller status` says. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewire.agent.contract.state import LeaseState
from placewire.controller.records.journal import Decision

_BECAME = {
    "staged": "was left at 'staged'",
    "committed": "was left at 'committed'",
    "keep decided": "was to be kept",
    "kept": "was kept",
    "restored": "was undone",
    "restore failed": "could not be undone everywhere",
    "destroy decided": "was to be destroyed",
    "destroyed": "was destroyed",
    "finished": "was kept by another",
}


@dataclass(frozen=True)
class DecisionInForce:
    """decision: the number of the one that all servers are on which answer; None: they are on
    nothing of the plan, or not on one. why: in words, by what became of decisions."""

    decision: int | None
    why: str


def decision_in_force(
    plan_name: str, decisions: Sequence[Decision], leases: Mapping[str, LeaseState]
) -> DecisionInForce:
    """decisions: oldest first; those of other plans count for nothing. leases: of the plan's
    servers that answer."""
    decisions = [one for one in decisions if one.plan_name == plan_name]
    on: dict[str, list[str]] = {}
    for server, lease in leases.items():
        place = _place(plan_name, decisions, server, lease)
        on.setdefault(place, []).append(server)
    if len(on) > 1:
        each = "; ".join(f"{place}: {', '.join(servers)}" for place, servers in on.items())
        return DecisionInForce(None, f"mixed: {each}{_because(decisions, None)}")
    if not on:
        return DecisionInForce(None, "no server answers" + _because(decisions, None))
    place = next(iter(on))
    found = next((one for one in decisions if place == _named(one)), None)
    because = _because(decisions, found)
    return DecisionInForce(
        found.id if found else None, f"on every server that answers: {place}{because}"
    )


def _place(plan_name: str, decisions: Sequence[Decision], server: str, lease: LeaseState) -> str:
    if lease.is_idle:
        return "nothing"
    if lease.plan_name != plan_name:
        return f"plan {lease.plan_name!r}"
    if not lease.is_in_force:
        return f"{lease.phase} (generation {lease.generation})"
    for one in reversed(decisions):
        if one.generations.get(server) == lease.generation:
            return _named(one)
    return f"a decision that was not made here (generation {lease.generation})"


def _because(decisions: Sequence[Decision], found: Decision | None) -> str:
    """What became of it, of all since, and of what it was made to finish; where nothing is in
    force, of the last."""
    first = decisions.index(found) if found is not None else max(0, len(decisions) - 1)
    while first > 0 and decisions[first - 1].last_phase == "finished":
        first -= 1
    told = [_told(one) for one in decisions[first:]]
    return f"; {'; '.join(told)}" if told else "; nothing was decided here yet"


def _named(decision: Decision) -> str:
    return f"decision {decision.id}"


def _told(decision: Decision) -> str:
    last = decision.phases[-1]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.unix_seconds))
    detail = f" ({last.detail})" if last.detail else ""
    return f"{_named(decision)} {_BECAME.get(last.name, last.name)} {when}{detail}"
