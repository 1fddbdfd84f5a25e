"""Which decision a rollback takes, and when it takes none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from placewire.agent.contract.state import DesiredState
from placewire.controller.errors import UsageError
from placewire.controller.records.journal import Journal, removed_on
from placewire.controller.story.rollback import choose, states_of
from tests.controller.plans import plan, plan_document

PLAN = plan(plan_document(2))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path) as journal:
        yield journal


def decided(journal: Journal, digest: str, *, kept: bool = True, name: str = "small") -> int:
    number = len(journal.decisions()) + 1
    states = {
        server: DesiredState(server=server, plan_name=name, plan_digest=digest, generation=number)
        for server in ("s1", "s2")
    }
    decision = journal.begin(name, digest, dict.fromkeys(states, number))
    if kept:
        journal.keep(decision, {s: state.model_dump_json() for s, state in states.items()})
        journal.decide(decision, "kept")
    return decision


def test_the_last_other_network_that_was_kept(journal: Journal) -> None:
    with pytest.raises(UsageError, match="no other network of plan"):
        choose(journal, PLAN, None)
    first = decided(journal, "a")
    with pytest.raises(UsageError, match="no other network of plan"):
        choose(journal, PLAN, None)
    second = decided(journal, "b")
    decided(journal, "b")
    decided(journal, "c", kept=False)
    decided(journal, "d", name="another")
    assert choose(journal, PLAN, None).id == first
    assert choose(journal, PLAN, second).id == second


@pytest.mark.parametrize("destroyed", ["as this release records it", "as 0.1.0 did"])
def test_after_a_destroy_it_is_the_network_that_was_kept_last(
    journal: Journal, destroyed: str
) -> None:
    first, last = decided(journal, "a"), decided(journal, "b")
    latest = decided(journal, "c", kept=False)
    journal.decide(latest, "restored")
    assert choose(journal, PLAN, None).id == first
    if destroyed == "as 0.1.0 did":
        journal.decide(latest, "destroyed")
    else:
        journal.note_removals("small", ["s1", "s2"])
        journal.decide(latest, "destroyed", detail=removed_on(["s1", "s2"]))
    assert choose(journal, PLAN, None).id == last
    again = decided(journal, "c")
    assert choose(journal, PLAN, None).id == last
    journal.decide(again, "restored")
    assert choose(journal, PLAN, None).id == again, "nothing is in force again"


def test_a_network_that_is_left_on_some_servers_is_the_present_one(journal: Journal) -> None:
    first = decided(journal, "a")
    decided(journal, "b")
    journal.note_removals("small", ["s1"])
    assert choose(journal, PLAN, None).id == first


@pytest.mark.parametrize("number", [2, 3, 99])
def test_what_was_not_kept_or_is_another_plans_cannot_be_gone_back_to(
    journal: Journal, number: int
) -> None:
    decided(journal, "a")
    decided(journal, "b", kept=False)
    decided(journal, "c", name="another")
    with pytest.raises(UsageError, match=f"decision {number} is none") as caught:
        choose(journal, PLAN, number)
    assert "history" in caught.value.remedy


def test_states_are_as_they_were_decided(journal: Journal) -> None:
    number = decided(journal, "a")
    states = states_of(journal, choose(journal, PLAN, number), PLAN)
    assert {s: state.plan_digest for s, state in states.items()} == {"s1": "a", "s2": "a"}


def test_other_servers_than_the_plans_are_refused(journal: Journal) -> None:
    number = decided(journal, "a")
    with pytest.raises(UsageError, match="was for s1, s2, the plan is for s1, s2, s3"):
        states_of(journal, choose(journal, PLAN, number), plan(plan_document(3)))


def test_a_decision_of_another_version_is_refused(journal: Journal) -> None:
    number = journal.begin("small", "a", {"s1": 1})
    journal.keep(number, {"s1": '{"unheard": 1}'})
    journal.decide(number, "kept")
    with pytest.raises(UsageError, match="another version"):
        states_of(journal, choose(journal, PLAN, number), PLAN)
