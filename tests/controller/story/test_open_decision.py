"""Does `controller status` say what `controller recover` would do about a decision left open?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.state import LeaseState
from placewire.controller.records.journal import Decision, Journal, to_remove_on
from placewire.controller.story.open_decision import about_open, is_over, left_open

IDLE = LeaseState(phase="idle", generation=0, highest_generation=2)
HELD = LeaseState(phase="committed", generation=2, plan_name="p", expires_unix=1e9)
FORMER = LeaseState(phase="committed", generation=1, plan_name="p")
FAILED = HELD.model_copy(update={"phase": "failed", "expires_unix": None})
OTHERS = LeaseState(phase="committed", generation=2, plan_name="q")


def left(folder: Path, phases: Sequence[str], **detail: Any) -> Decision:
    """The second decision, after one that was kept."""
    with Journal.open(folder) as journal:
        first = journal.begin("p", "d1", {"s1": 1, "s2": 1})
        journal.keep(first, {"s1": "{}", "s2": "{}"})
        journal.decide(first, "kept")
        second = journal.begin("p", "d2", {"s1": 2, "s2": 2})
        for phase in phases:
            journal.decide(second, phase, **detail)
        found = left_open(journal, "p")
    assert found is not None and found.id == second
    return found


@pytest.mark.parametrize("phases", [[], ["committed"]])
@pytest.mark.parametrize("lease", [IDLE, FORMER, OTHERS])
def test_what_no_server_holds_any_more_is_not_to_be_undone(
    tmp_path: Path, phases: list[str], lease: LeaseState
) -> None:
    """The journal could not take that it was undone, or the leases have ended since."""
    found = left(tmp_path, phases)
    said = about_open(found, {"s1": IDLE, "s2": lease}, "plan.yaml")
    assert "no server holds anything of it any more" in said and "would" not in said
    assert "`controller recover plan.yaml` only records" in said
    assert "ends ranks of the plan that still run" in said


@pytest.mark.parametrize(
    "leases", [{"s1": IDLE, "s2": HELD}, {"s1": IDLE, "s2": FAILED}, {"s1": IDLE}]
)
def test_what_a_server_holds_or_may_hold_is_to_be_undone(
    tmp_path: Path, leases: dict[str, LeaseState]
) -> None:
    found = left(tmp_path, ["committed"])
    assert about_open(found, leases, "plan.yaml").endswith(
        "by a controller that is gone: `controller recover plan.yaml` would undo it"
    )


def test_what_was_to_be_kept_is_finished(tmp_path: Path) -> None:
    found = left(tmp_path, ["keep decided"])
    assert "would finish it" in about_open(found, {"s1": IDLE, "s2": IDLE}, "plan.yaml")


def test_what_was_to_be_kept_and_could_not_be_undone_is_not_over(tmp_path: Path) -> None:
    """Recovery makes anew what was in force before."""
    found = left(tmp_path, ["keep decided", "restore failed"])
    assert not is_over(found, {"s1": IDLE, "s2": IDLE})


def test_a_destroy_that_came_to_its_end_is_over(tmp_path: Path) -> None:
    found = left(tmp_path, ["destroy decided"], detail=to_remove_on(["s1", "s2"]))
    assert is_over(found, {"s1": IDLE, "s2": OTHERS})
    for lease in (HELD, FORMER, FAILED):
        assert "would destroy it" in about_open(found, {"s1": IDLE, "s2": lease}, "plan.yaml")
