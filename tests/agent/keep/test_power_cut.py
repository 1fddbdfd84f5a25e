"""A loss of power right after an undo: what Open vSwitch had not written is not undone for good."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import RETRY_SECONDS
from tests.agent.keeping import PLAN
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import Port, Qos
from tests.agent.memory_snapshot import snapshot
from tests.agent.states import desired_state


class Worst(random.Random):
    """Of a database's log, only what is certain to be on disk."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_undone_is_not_back_after_a_loss_of_power(tmp_path: Path, kept: bool) -> None:
    agent = MemoryAgent(tmp_path)
    before = snapshot(agent.server)
    assert agent.keeper.stage(desired_state(1, nics=("nic0", "nic1")), 30).succeeded
    agent.network.log.sync()  # By itself: the kernel writes back what is half a minute old.
    if kept:
        agent.keeper.commit(1, None)
        assert agent.keeper.destroy(PLAN).succeeded
    else:
        agent.wait(31)
    assert agent.keeper.lease.is_idle
    agent.network.log.cut_power(Worst())
    agent.reboot()
    assert snapshot(agent.server) == before and not agent.keeper.observe().state.problems
    assert agent.keeper.stage(desired_state(2), 30).succeeded


def test_what_goes_back_to_a_kept_state_is_whole_after_a_loss_of_power(tmp_path: Path) -> None:
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1, nics=("nic0",)), 30).succeeded
    agent.keeper.commit(1, None)
    kept = snapshot(agent.server)
    assert agent.keeper.stage(desired_state(2, nics=("nic0", "nic1")), 30).succeeded
    assert agent.keeper.restore(2).succeeded
    assert agent.server.bridges.keys() == {"pw-nic0"}
    agent.network.log.cut_power(Worst())
    assert agent.server.bridges.keys() == {"pw-nic0"}
    agent.reboot()
    assert snapshot(agent.server) == kept


def test_a_stage_that_the_switch_forgot_is_made_whole(tmp_path: Path) -> None:
    """So a stage needs no sync of the database: the agent's own state has all of it."""
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1, nics=("nic0", "nic1")), 30).succeeded
    agent.keeper.commit(1, None)
    agent.network.log.sync()
    assert agent.keeper.stage(desired_state(2, nics=("nic0",)), 30).succeeded
    agent.keeper.commit(2, None)
    staged = snapshot(agent.server)
    agent.network.log.cut_power(Worst())
    assert agent.server.bridges.keys() == {"pw-nic0", "pw-nic1"}
    agent.reboot()
    assert snapshot(agent.server) == staged


def test_an_undo_is_done_once_the_switch_has_it_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1), 30).succeeded

    def fails() -> None:
        raise EffectError("I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(agent.network, "make_durable", fails)
        report = agent.keeper.destroy(PLAN)
        assert not report.succeeded and not agent.server.bridges
        sentence = report.refusals[0].sentence
        assert "Open vSwitch may not have that on its disk: I/O error" in sentence
        agent.wait(RETRY_SECONDS)
        assert agent.keeper.lease.phase == "failed"
    agent.wait(RETRY_SECONDS)
    assert agent.keeper.lease.is_idle


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_loss_of_power_leaves_others_their_very_rows(tmp_path: Path, made_anew: bool) -> None:
    """Of the database in memory: by its rows, others tell whether the agent touched what is theirs.
    A row that they make anew is equal to the one before it, and another one."""
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    ports = agent.server.bridges["pw-nic0"].ports
    for _ in range(1 + made_anew):
        qos = Qos(False, 1_000_000)
        ports["nic0"].qos, ports["op0"] = qos, Port("op0", ours=False)
        agent.network.log.begin()
    theirs = ports["op0"]
    agent.network.log.cut_power(Worst())
    ports = agent.server.bridges["pw-nic0"].ports
    assert ports["nic0"].qos is qos and ports["op0"] is theirs
