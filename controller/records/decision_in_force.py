"""Says which decision a plan's servers have in force, and why, for `controller status`. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewire.agent.contract.state import LeaseState
from placewire.controller.few_names import few_names
from placewire.controller.records.journal import Decision
from placewire.controller.records.phase_words import phase_in_words

# A phase that is not here is told as "the decision was", and then the words of that phase.
_BECAME = {
    "staged": "was left at 'staged'",
    "committed": "was left at 'committed'",
    "keep decided": "was to be kept",
    "destroy decided": "was to be destroyed",
    "destroy refused": "was to be destroyed, which every server refused",
    "destroyed in part": "was destroyed on some servers",
    "finished": "was finished by a later decision",
}


@dataclass(frozen=True)
class DecisionInForce:
    """decision: the number of the decision that every answering server has in force; None where
    they differ or have none of the plan's. why: in words, and what became of the decisions."""

    decision: int | None
    why: str


def decision_in_force(
    plan_name: str, decisions: Sequence[Decision], leases: Mapping[str, LeaseState]
) -> DecisionInForce:
    """decisions: oldest first, also of other plans. leases: of the plan's servers that answer."""
    decisions = [one for one in decisions if one.plan_name == plan_name]
    servers_on: dict[str, list[str]] = {}
    for server, lease in leases.items():
        there = _held(server, lease, plan_name, decisions)
        servers_on.setdefault(there, []).append(server)
    found = None
    if not servers_on:
        words = "no server answers"
    elif len(servers_on) > 1:
        each = (f"{there}: {few_names(servers)}" for there, servers in servers_on.items())
        words = f"mixed: {'; '.join(each)}"
    else:
        (there,) = servers_on
        found = next((one for one in decisions if there == _named(one)), None)
        words = f"on every server that answers: {there}"
    return DecisionInForce(found.id if found else None, words + _because(decisions, found))


def _held(server: str, lease: LeaseState, plan_name: str, decisions: Sequence[Decision]) -> str:
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
    """Tells what became of the decision in force, of all later ones, and of those that it was made
    to finish; where none is in force, of the last decision."""
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
    became = _BECAME.get(last.name, f"was {phase_in_words(last.name)}")
    detail = f" ({last.detail})" if last.detail else ""
    return f"{_named(decision)} {became} {when}{detail}"
