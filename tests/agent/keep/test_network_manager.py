"""A NIC whose address has `noprefixroute`, and whose subnet's route another program made."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.oracle.differences import differences
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import base_routes, subnet_route
from tests.agent.memory_snapshot import snapshot
from tests.agent.states import desired_state

PLAN = "test-plan"


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    made = MemoryAgent(tmp_path)
    made.server.network_manager_configures("nic0")
    return made


def in_force(agent: MemoryAgent) -> None:
    report = agent.keeper.stage(desired_state(1), 30)
    assert report.succeeded, report.refusals
    agent.keeper.commit(1, None)


def over_bridge(agent: MemoryAgent) -> bool:
    expected = [subnet_route("pw-nic0"), *base_routes("pw-nic0")]
    return agent.server.main_routes == expected


def test_the_subnets_route_moves_to_the_bridge_and_back(agent: MemoryAgent) -> None:
    before = snapshot(agent.server)
    in_force(agent)
    assert over_bridge(agent)
    assert agent.keeper.read_back(1).deviations == ()
    assert agent.keeper.destroy(PLAN).succeeded
    assert differences(before, snapshot(agent.server)) == []


def test_it_is_put_back_before_a_gateways_where_the_bridge_is_made_anew(
    agent: MemoryAgent,
) -> None:
    in_force(agent)
    agent.server.switch_restarts()
    agent.keeper.notice(switch_restarted=True)
    agent.wait(5)
    assert over_bridge(agent)


def test_it_is_owed_to_a_nic_that_is_away(agent: MemoryAgent) -> None:
    before = snapshot(agent.server)
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    report = agent.keeper.destroy(PLAN)
    assert f"route {subnet_route('nic0')}" in report.refusals[0].what
    agent.server.nic_comes_back("nic0")
    agent.keeper.notice()
    agent.wait(5)
    assert differences(before, snapshot(agent.server)) == []


def test_the_state_is_taken_back_from_marks_with_it(agent: MemoryAgent) -> None:
    before = snapshot(agent.server)
    in_force(agent)
    for path in agent.directory.glob("state*.json"):
        path.unlink()
    agent.restart()
    assert agent.keeper.restore_from_marks().succeeded
    assert differences(before, snapshot(agent.server)) == []
