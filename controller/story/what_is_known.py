"""Says where servers hold what this journal does not know, as after it was put back from a backup.

To finish, undo or destroy by such a journal would end what is in force, and what it has of a change
that was left open may be long over. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from placewire.agent.contract.state import LeaseState
from placewire.controller.errors import JournalFailed
from placewire.controller.records.journal import Decision, Journal
from placewire.controller.records.phase_words import phase_in_words
from placewire.controller.story.held import words_of

Way = Literal["finish", "undo", "destroy"]


@dataclass(frozen=True)
class Known:
    """What a journal has. decisions: of all plans, by server and generation. highest: by server,
    its newest generation. removed: by server, the last decision up to which the plan is destroyed.
    digests: of the plan's decisions; one that recovery made may have several, by server."""

    decisions: Mapping[tuple[str, int], Decision]
    highest: Mapping[str, int]
    removed: Mapping[str, int]
    digests: frozenset[str]


def known_by(journal: Journal, plan_name: str) -> Known:
    """Raises JournalFailed."""
    all_of_them = journal.decisions()
    decisions = {
        (server, generation): one
        for one in all_of_them
        for server, generation in one.generations.items()
    }
    highest: dict[str, int] = {}
    for server, generation in decisions:
        highest[server] = max(generation, highest.get(server, 0))
    digests = frozenset(one.plan_digest for one in all_of_them if one.plan_name == plan_name)
    return Known(decisions, highest, journal.removed(plan_name), digests)


def require_known(
    plan_name: str, known: Known, leases: Mapping[str, LeaseState], way: Way | None
) -> None:
    """leases: of the servers that answer. way: in which a change that was left open is to be ended;
    None where none was. Raises JournalFailed, which names the differences, before anything is
    changed."""
    told = {
        server: _unknown(server, lease, plan_name, known, way) for server, lease in leases.items()
    }
    different = {server: words for server, words in told.items() if words}
    if not different:
        return
    error = JournalFailed(
        "the journal does not have what these servers hold, as if it had been put back from an "
        "older backup; nothing was changed",
        where=", ".join(different),
        remedy="put the journal back that has it, if there is one. Otherwise `controller destroy "
        "PLAN` removes the plan's network from every server, and `controller apply PLAN` makes it "
        "on every server, whatever they hold now; a lease undoes by itself what is under it",
    )
    error.holds = different
    raise error


def _unknown(server: str, lease: LeaseState, plan_name: str, known: Known, way: Way | None) -> str:
    """What of this server the journal does not know; "" where it knows all that matters."""
    newest = known.highest.get(server, 0)
    # What was made since is over, and ended another way than this journal would end it.
    made_since = f"has seen generation {lease.highest_generation}; the journal's newest is {newest}"
    is_newer = lease.highest_generation > newest
    if lease.is_idle:
        return made_since if is_newer and way == "finish" else ""
    if lease.plan_name != plan_name:
        return ""
    holds = words_of(lease)
    decision = known.decisions.get((server, lease.generation))
    if decision is None:
        return f"{holds}, which the journal does not have; its newest there is {newest}"
    if decision.plan_name != plan_name or lease.plan_digest not in known.digests:
        return (
            f"{holds}, {(lease.plan_digest or 'none')[:12]}; the journal has another decision, "
            f"{decision.id} of plan {decision.plan_name!r}, as that generation"
        )
    if lease.is_kept and not decision.was_decided_to_keep:
        recorded = phase_in_words(decision.last_phase)
        return f"{holds}, kept; the journal has decision {decision.id} as {recorded!r}"
    was_removed = known.removed.get(server, 0) >= decision.id
    if lease.is_in_force and (was_removed or decision.was_destroyed_by_former_release):
        return f"{holds}; the journal has decision {decision.id} as destroyed there"
    if is_newer and way in ("finish", "destroy"):
        return f"{holds}, and {made_since}"
    return ""
