"""Others' rules of routing that name a NIC keep a plan from taking the NIC over, and nothing else.

The keeper runs on the network in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.memory_agent import MemoryAgent
from tests.agent.states import desired_state

RULE = "priority 9 from all iif nic1 table 7"


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    """Both NICs are in force, and somebody has made the rule since."""
    made = MemoryAgent(tmp_path)
    assert made.keeper.stage(desired_state(1), 30).succeeded
    made.keeper.commit(1, None)
    made.server.interface_rules.append(RULE)
    return made


def test_a_stage_that_would_take_the_nic_over_is_refused(tmp_path: Path) -> None:
    agent = MemoryAgent(tmp_path)
    agent.server.interface_rules.append(RULE)
    refused = agent.keeper.stage(desired_state(1), 30)
    assert [one.where for one in refused.refusals] == ["NIC nic1"]
    assert RULE in refused.refusals[0].what


def test_a_stage_of_a_nic_that_is_in_force_is_not(agent: MemoryAgent) -> None:
    assert agent.keeper.stage(desired_state(2), 30).succeeded


def test_an_undo_takes_the_nic_again(agent: MemoryAgent) -> None:
    assert agent.keeper.stage(desired_state(2, nics=("nic0",)), 30).succeeded
    assert "pw-nic1" not in agent.server.bridges
    assert agent.keeper.restore(2).succeeded
    assert agent.keeper.lease.is_kept and agent.keeper.read_back(1).deviations == ()


def test_so_does_the_end_of_a_lease(agent: MemoryAgent) -> None:
    assert agent.keeper.stage(desired_state(2, nics=("nic0",)), 30).succeeded
    agent.wait(31)
    assert agent.keeper.lease.is_kept and agent.keeper.read_back(1).deviations == ()
