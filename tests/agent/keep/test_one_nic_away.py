"""A NIC that is away, or in somebody's bridge, keeps nothing of other NICs from being put right.

The keeper runs on the network in memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import pytest

from tests.agent.faults import Fault, NoFaults, Place
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import BridgeRow, Port
from tests.agent.states import desired_state

OF_NIC1 = desired_state(1).rules[1]
LONGEST_RETRY_SECONDS = 301.0


class EffectsFail(NoFaults):
    def at(self, place: Place, what: str) -> Fault | None:
        return Fault.CALL_FAILS if place is Place.EFFECT else None


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    made = MemoryAgent(tmp_path)
    assert made.keeper.stage(desired_state(1), 30).succeeded
    made.keeper.commit(1, None)
    return made


def look(agent: MemoryAgent, *, at_start: bool) -> None:
    if at_start:
        agent.restart()
    else:
        agent.keeper.notice()
    agent.wait(30)


@pytest.mark.parametrize("at_start", [False, True], ids=["healing", "the agent's start"])
@pytest.mark.parametrize("removed", ["NIC", "NIC and bridge"])
def test_a_nic_that_is_away(agent: MemoryAgent, removed: str, *, at_start: bool) -> None:
    server = agent.server
    server.nic_vanishes("nic0")
    if removed == "NIC and bridge":
        del server.bridges["pw-nic0"]
        server.switch_follows()
    server.rules.remove((OF_NIC1, True))
    look(agent, at_start=at_start)
    assert (OF_NIC1, True) in server.rules
    assert any("NIC nic0 is away" in note for note in agent.keeper.drift.notes)
    assert agent.keeper.read_back(1).deviations, "what waits for the NIC is still told"
    server.nic_comes_back("nic0")
    for _ in range(2):
        agent.keeper.notice()
        agent.wait(LONGEST_RETRY_SECONDS)
    assert agent.keeper.read_back(1).deviations == ()


@pytest.mark.parametrize("at_start", [False, True], ids=["healing", "the agent's start"])
def test_a_nic_in_somebodys_bridge(agent: MemoryAgent, *, at_start: bool) -> None:
    server = agent.server
    del server.bridges["pw-nic0"].ports["nic0"]
    server.bridges["br0"] = BridgeRow("br0", False, "nic0", 1500, {"nic0": Port("nic0", False)})
    server.switch_follows()
    server.rules.remove((OF_NIC1, True))
    look(agent, at_start=at_start)
    assert (OF_NIC1, True) in server.rules
    assert any("nic0 is a port of br0" in note for note in agent.keeper.drift.notes)
    assert agent.network.harmed == []


def test_a_start_without_a_nic_tells_what_it_restored(agent: MemoryAgent) -> None:
    agent.server.nic_vanishes("nic0")
    agent.server.rules.remove((OF_NIC1, True))
    agent.keeper = agent._start()
    report = agent.keeper.resume()
    assert report is not None and not report.succeeded
    assert OF_NIC1.key in [change.key for change in report.changes]


def test_after_a_start_without_a_nic_other_drift_is_healed_as_ever(agent: MemoryAgent) -> None:
    server = agent.server
    server.nic_vanishes("nic0")
    agent.restart()
    for _ in range(3):
        agent.wait(LONGEST_RETRY_SECONDS)
    server.rules.remove((OF_NIC1, True))
    agent.keeper.notice()
    due = agent.keeper.seconds_until_due()
    assert due is not None and due < 2
    agent.wait(due)
    assert (OF_NIC1, True) in server.rules


def test_after_a_start_without_a_nic_drift_is_only_reported_where_the_plan_says_so(
    tmp_path: Path,
) -> None:
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1, drift="report"), 30).succeeded
    agent.keeper.commit(1, None)
    agent.server.nic_vanishes("nic0")
    agent.server.rules.remove((OF_NIC1, True))
    agent.restart()
    assert (OF_NIC1, True) in agent.server.rules, "a start restores all that it can"
    agent.server.rules.remove((OF_NIC1, True))
    for _ in range(3):
        agent.wait(LONGEST_RETRY_SECONDS)
    assert (OF_NIC1, True) not in agent.server.rules
    assert "drift: report" in agent.keeper.drift.notes[0]


@pytest.mark.parametrize("drift", ["heal", "report"])
def test_what_a_start_finds_in_the_place_of_ours_is_drift_from_then_on(
    tmp_path: Path, drift: Literal["heal", "report"]
) -> None:
    """It tells whether the agent puts its own back once that is gone."""
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1, drift=drift), 30).succeeded
    agent.keeper.commit(1, None)
    link = agent.server.links["nic0"]
    link.without_root()
    link.root = "tbf queueing discipline 8001:"
    agent.keeper = agent._start()
    report = agent.keeper.resume()
    assert report is not None and "tbf" in report.refusals[0].what
    assert ("keeps trying" in report.refusals[0].remedy) == (drift == "heal")
    agent.wait(30)
    assert link.root is not None and agent.network.harmed == []
    link.without_root()
    agent.keeper.notice()
    agent.wait(30)
    assert (agent.keeper.read_back(1).deviations == ()) == (drift == "heal")
    agent.restart()
    assert agent.keeper.read_back(1).deviations == ()


def test_a_nic_that_was_away_at_the_start_is_restored_also_where_drift_is_only_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = MemoryAgent(tmp_path)
    server = agent.server
    assert agent.keeper.stage(desired_state(1, drift="report"), 30).succeeded
    agent.keeper.commit(1, None)
    server.nic_vanishes("nic0")
    agent.restart()
    server.rules.remove((OF_NIC1, True))
    agent.keeper.notice()
    agent.wait(5)
    found = agent.keeper.drift
    assert found.drifts and found.since_unix is not None
    caplog.set_level(logging.INFO)
    server.nic_comes_back("nic0")
    for _ in range(3):
        agent.keeper.notice()
        agent.wait(5)
        now = agent.keeper.drift
        assert now.since_unix == found.since_unix, "the rule is away since then"
        assert (now.drifts, now.heals) == (found.drifts, 0), "nobody changed what was restored"
    assert "a NIC came that was awaited; restored: " in caplog.text
    assert "others changed the state in force" not in caplog.text
    assert [one.key for one in agent.keeper.read_back(1).deviations] == [OF_NIC1.key]
    assert "drift: report" in agent.keeper.drift.notes[0]
    # What others change on that NIC from now on is drift like all other.
    server.remove_address("pw-nic0", desired_state(1).addresses[0].address)
    agent.keeper.notice()
    agent.wait(30)
    assert len(agent.keeper.read_back(1).deviations) > 1


def test_what_of_that_nic_fails_is_tried_again(tmp_path: Path) -> None:
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1, drift="report"), 30).succeeded
    agent.keeper.commit(1, None)
    agent.server.nic_vanishes("nic0")
    agent.restart()
    agent.server.nic_comes_back("nic0")
    agent.network._striker = EffectsFail()
    for _ in range(2):
        agent.keeper.notice()
        agent.wait(5)
    assert agent.keeper.read_back(1).deviations
    agent.network._striker = NoFaults()
    for _ in range(2):
        agent.keeper.notice()
        agent.wait(LONGEST_RETRY_SECONDS)
    assert agent.keeper.read_back(1).deviations == ()


def test_a_state_that_comes_back_while_a_nic_is_away(agent: MemoryAgent) -> None:
    server = agent.server
    assert agent.keeper.stage(desired_state(2, nics=("nic1",)), 30).succeeded
    agent.keeper.commit(2, 60.0)
    server.nic_vanishes("nic0")
    agent.wait(61)
    lease = agent.keeper.lease
    assert (lease.phase, lease.generation) == ("failed", 1)
    assert "NIC nic0 is away" in lease.detail
    assert (OF_NIC1, True) in server.rules and "pw-nic1" in server.bridges
    server.nic_comes_back("nic0")
    for _ in range(3):
        agent.keeper.notice()
        agent.wait(LONGEST_RETRY_SECONDS)
    assert agent.keeper.lease.is_kept and agent.keeper.read_back(1).deviations == ()
