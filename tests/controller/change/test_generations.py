"""An agent's word moves a server's generations no farther than a lost journal explains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from placewire.agent.contract.state import LeaseState
from placewire.controller.change.generations import next_generations
from placewire.controller.errors import AgentProblem
from placewire.controller.records.journal import Journal


def reporting(generation: int) -> Any:
    lease = LeaseState(phase="idle", generation=0, highest_generation=generation)
    return SimpleNamespace(hello={"s1": SimpleNamespace(lease=lease)})


def test_a_lost_journal_goes_on_above_what_the_agent_has_seen(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        assert next_generations(journal, reporting(5000), ["s1"]) == {"s1": 5001}


@pytest.mark.parametrize("generation", [2**63 - 1, 2**63 - 2, 2**40])
def test_a_generation_that_nobody_gave_is_refused_and_changes_nothing(
    tmp_path: Path, generation: int
) -> None:
    with Journal.open(tmp_path) as journal:
        journal.begin("plan", "digest", {"s1": 7})
        with pytest.raises(AgentProblem, match=str(generation)) as raised:
            next_generations(journal, reporting(generation), ["s1"])
        assert raised.value.where == "s1" and "authority deny s1" in raised.value.remedy
        assert next_generations(journal, reporting(7), ["s1"]) == {"s1": 8}
