"""The decision of a plan that a controller left open when it died, as the journal has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.agent.contract.state import LeaseState
from placewire.controller.records.journal import Decision, Journal
from placewire.controller.records.phase_words import phase_in_words
from placewire.controller.story.what_is_known import Way

# The last phases of decisions that leave nothing to do.
_SETTLED = ("kept", "restored", "destroyed", "finished")
_ONLY_RECORDS = "only records that it is over, and ends ranks of the plan that still run"
_WAYS: Mapping[str, Way] = {"keep decided": "finish", "destroy decided": "destroy"}


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


def is_over(decision: Decision, leases: Mapping[str, LeaseState]) -> bool:
    """Whether nothing is left to undo or destroy, which the journal could not take, as on a full
    disk: each server that may hold something of it answers, and none does. leases: of those that
    answer."""
    way = way_of(decision)
    if way == "destroy":
        return all(_holds_nothing(leases.get(s), decision) for s in decision.to_destroy)
    if way == "finish" or decision.was_decided_to_keep:
        return False  # What was in force before may have to be made anew.
    return all(
        _holds_nothing(leases.get(server), decision, generation)
        for server, generation in decision.generations.items()
    )


def about_open(decision: Decision, leases: Mapping[str, LeaseState], plan_file: str) -> str:
    """What was left open, and what recovery would do. leases: as in is_over."""
    recovery = f"`controller recover {plan_file}`"
    if is_over(decision, leases):
        return f"{_nothing_left(decision)}: {recovery} {_ONLY_RECORDS}"
    return (
        f"{_at(decision, 'was left')} by a controller that is gone: {recovery} would "
        f"{way_of(decision)} it"
    )


def about_recovery(decision: Decision, *, over: bool) -> str:
    """The same, as recovery itself says it before it begins. over: of is_over."""
    if over:
        return f"{_nothing_left(decision)}; recovery {_ONLY_RECORDS}"
    return f"{_at(decision, 'was left')}; recovery will {way_of(decision)} it"


def _nothing_left(decision: Decision) -> str:
    held = "no server holds anything of it any more"
    return f"{_at(decision, 'is')} in the journal, and {held}"


def _at(decision: Decision, verb: str) -> str:
    return f"decision {decision.id} {verb} at {phase_in_words(decision.last_phase)!r}"


def _holds_nothing(
    lease: LeaseState | None, decision: Decision, generation: int | None = None
) -> bool:
    """generation: what it would hold; None: any of the plan's."""
    if lease is None:
        return False
    if lease.is_idle or lease.plan_name != decision.plan_name:
        return True
    return generation is not None and lease.generation != generation
