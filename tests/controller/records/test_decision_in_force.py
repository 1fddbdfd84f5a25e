"""`controller status` says which decision servers have in force, and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from placewire.agent.contract.state import LeaseState
from placewire.controller.records.decision_in_force import DecisionInForce, decision_in_force
from placewire.controller.records.journal import Journal


def lease(generation: int, phase: str = "committed", plan: str = "p") -> LeaseState:
    return LeaseState(
        phase="idle" if generation == 0 else phase,
        generation=generation, plan_name=plan,
    )  # fmt: skip


STORIES: dict[str, tuple[list[list[str]], dict[str, int], int | None, str]] = {
    "nothing yet": ([], {"s1": 0, "s2": 0}, None, "nothing; nothing was decided here yet"),
    "kept": ([["kept"]], {"s1": 1, "s2": 1}, 1, r"decision 1; decision 1 was kept 20\S+ \S+$"),
    "undone": (
        [["kept"], ["restored"]], {"s1": 1, "s2": 1}, 1,
        r"decision 1; decision 1 was kept .*; decision 2 was undone 20",
    ),
    "undone by recovery": (
        [["kept"], ["restored by recovery"]], {"s1": 1, "s2": 1}, 1,
        r"decision 2 was undone \S+ \S+ \(by recovery\)",
    ),
    "finished": (
        [["kept"], ["keep decided", "finished by recovery, as decision 3"], ["kept"]],
        {"s1": 3, "s2": 3}, 3,
        r"decision 3; decision 2 was finished by a later decision .*as decision 3\); decision",
    ),
    "destroyed": (
        [["kept"], ["kept", "destroy decided", "destroyed"]], {"s1": 0, "s2": 0}, None,
        r"that answers: nothing; decision 2 was destroyed",
    ),
    "left": (
        [["kept"], ["committed"]], {"s1": 1, "s2": 1}, 1, "decision 2 was left at 'committed'"
    ),
    "mixed": (
        [["kept"], ["keep decided"]], {"s1": 2, "s2": 1}, None,
        "mixed: decision 2: s1; decision 1: s2; decision 2 was to be kept",
    ),
    "another's": ([["kept"]], {"s1": 7, "s2": 7}, None, "was not made here .generation 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_it_says_which_and_why(tmp_path: Path, name: str) -> None:
    stories, generations, decision, words = STORIES[name]
    with Journal.open(tmp_path) as journal:
        for number, phases in enumerate(stories, start=1):
            made = journal.begin("p", f"d{number}", {"s1": number, "s2": number})
            for phase in phases:
                known, _, detail = phase.partition(" by recovery")
                told = f"by recovery{detail}" if "by recovery" in phase else ""
                journal.decide(made, known, detail=told)
        leases = {server: lease(generation) for server, generation in generations.items()}
        found = decision_in_force("p", journal.decisions(), leases)
    assert found.decision == decision
    assert re.search(words, found.why), found.why


def test_another_plan_and_a_server_between_two_states_are_named() -> None:
    found = decision_in_force("p", (), {"s1": lease(3, plan="q"), "s2": lease(4, "restoring")})
    assert found == DecisionInForce(
        None, "mixed: plan 'q': s1; restoring (generation 4): s2; nothing was decided here yet"
    )
    assert decision_in_force("p", (), {}).why == "no server answers; nothing was decided here yet"
