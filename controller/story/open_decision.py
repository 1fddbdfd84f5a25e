"""The decision of a plan that a controller left open when it died, as the journal has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.controller.records.journal import Decision, Journal
from placewire.controller.story.what_is_known import Way

# The last phases of decisions that leave nothing to do.
_SETTLED = ("kept", "restored", "destroyed", "finished")
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
