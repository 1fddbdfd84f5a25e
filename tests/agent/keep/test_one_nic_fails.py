"""What one NIC cannot have now, for whatever reason, is not kept from the others.

The keeper runs on the network in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.agent.reconcile.contest import MOST_HEALS
from placewire.agent.reconcile.dependence import by_nic
from placewire.agent.reconcile.drift import find_drift
from placewire.agent.reconcile.effects import NoAnswerError
from placewire.agent.reconcile.unmarkable import NOTHING_KNOWN
from tests.agent.faults import Fault, NoFaults, Place
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import MemoryServer
from tests.agent.states import desired_state


class OneNicFails(NoFaults):
    """Every effect that names NIC nic0 or its bridge fails; unforeseen: with an error that no
    driver expects."""

    def __init__(self, *, unforeseen: bool) -> None:
        super().__init__()
        self.unforeseen, self.failed = unforeseen, 0

    def at(self, place: Place, what: str) -> Fault | None:
        if place is not Place.EFFECT or "nic0" not in what:
            return None
        self.failed += 1
        if self.unforeseen:
            raise TypeError(f"{what}: nobody expected this")
        return Fault.CALL_FAILS


class SwitchHangs(NoFaults):
    """ovs-vswitchd takes nothing in, and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = list[str]()

    def at(self, place: Place, what: str) -> Fault | None:
        if place is Place.EFFECT and what.startswith(("queues", "flows", "add bridges")):
            self.asked.append(what)
            raise NoAnswerError(f"{what}: no answer")
        return None


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    made = MemoryAgent(tmp_path)
    assert made.keeper.stage(desired_state(1), 30).succeeded
    made.keeper.commit(1, 60.0)
    return made


def before(nic: str) -> tuple[str, ...]:
    return MemoryServer().links[nic].address_commands


def failing(agent: MemoryAgent, *, unforeseen: bool) -> OneNicFails:
    striker = OneNicFails(unforeseen=unforeseen)
    agent.network._striker = striker
    return striker


@pytest.mark.parametrize("unforeseen", [False, True], ids=["told", "unforeseen"])
@pytest.mark.parametrize("how", ["destroy", "the lease's end"])
def test_the_other_nic_is_as_before(agent: MemoryAgent, how: str, *, unforeseen: bool) -> None:
    server, striker = agent.server, failing(agent, unforeseen=unforeseen)
    if how == "destroy":
        outcome = agent.keeper.destroy(desired_state(1).plan_name)
        assert not outcome.succeeded and "nic0" in outcome.refusals[0].sentence
    else:
        agent.wait(61)
    assert striker.failed
    lease = agent.keeper.lease
    assert lease.phase == "failed" and "nic0" in lease.detail
    assert "pw-nic1" not in server.bridges and "pw-nic1" not in server.links
    assert server.links["nic1"].address_commands == before("nic1")
    assert server.links["nic1"].classes is None
    assert agent.network.harmed == []
    agent.network._striker = NoFaults()
    for _ in range(3):
        agent.wait(301)
    assert agent.keeper.lease.is_idle and not server.bridges
    assert server.links["nic0"].address_commands == before("nic0")


OF_NIC0 = desired_state(1).addresses[0].address
RULE_OF_NIC1 = desired_state(1).rules[1]


def other_programs_take(agent: MemoryAgent, *, also_of_nic0: bool) -> None:
    """They take nic1's rule, and nic0's address, which the agent would put back before that."""
    if also_of_nic0:
        agent.server.remove_address("pw-nic0", OF_NIC0)
    agent.server.rules.remove((RULE_OF_NIC1, True))
    agent.keeper.notice()


@pytest.mark.parametrize("unforeseen", [False, True])
def test_drift_of_the_other_nic_is_healed(agent: MemoryAgent, *, unforeseen: bool) -> None:
    agent.keeper.commit(1, None)
    striker = failing(agent, unforeseen=unforeseen)
    other_programs_take(agent, also_of_nic0=True)
    agent.wait(5)
    assert striker.failed and (RULE_OF_NIC1, True) in agent.server.rules
    assert any("nic0" in note for note in agent.keeper.drift.notes)
    agent.network._striker = NoFaults()
    agent.wait(301)
    assert agent.keeper.drift.notes == () and agent.keeper.read_back(1).deviations == ()


@pytest.mark.parametrize("away", [False, True], ids=["its steps fail", "it is away"])
def test_a_fight_over_the_other_nic_ends_all_the_same(agent: MemoryAgent, *, away: bool) -> None:
    agent.keeper.commit(1, None)
    if away:
        agent.server.nic_vanishes("nic0")
    else:
        failing(agent, unforeseen=False)
    other_programs_take(agent, also_of_nic0=not away)
    heals = 0
    for _ in range(500):
        agent.wait(2)
        if (RULE_OF_NIC1, True) in agent.server.rules:
            heals += 1
            other_programs_take(agent, also_of_nic0=False)
    assert heals == MOST_HEALS
    told = "; ".join(agent.keeper.drift.notes)
    assert "nic0" in told and f"{RULE_OF_NIC1.key}: changed again and again" in told


def test_a_stage_that_fails_is_undone_on_the_other_nic(tmp_path: Path) -> None:
    agent = MemoryAgent(tmp_path)
    failing(agent, unforeseen=False)
    assert not agent.keeper.stage(desired_state(1), 30).succeeded
    assert "pw-nic1" not in agent.server.bridges
    assert agent.server.links["nic1"].classes is None


def test_the_steps_of_each_nic_stay_in_their_order(agent: MemoryAgent) -> None:
    kept = agent.keeper._context.memory.kept
    observed = agent.network.observe(NOTHING_KNOWN)
    steps = find_drift(None, observed, kept.ledger).steps
    groups = by_nic(steps)
    assert sorted(map(str, steps)) == sorted(str(step) for group in groups for step in group)
    for group in groups:
        assert [steps.index(step) for step in group] == sorted(map(steps.index, group))
    named = [{nic for nic in ("nic0", "nic1") for s in group if nic in str(s)} for group in groups]
    assert {frozenset(one) for one in named} >= {frozenset({"nic0"}), frozenset({"nic1"})}


def test_a_switch_that_hangs_is_asked_twice_and_not_for_each_nic(tmp_path: Path) -> None:
    agent = MemoryAgent(tmp_path)
    wanted = desired_state(1)
    assert agent.keeper.stage(wanted, 30).succeeded
    agent.keeper.commit(1, None)
    striker = agent.network._striker = SwitchHangs()
    for nic in ("nic0", "nic1"):
        agent.server.flows[f"pw-{nic}"].clear()
    agent.server.rules.remove((RULE_OF_NIC1, True))
    agent.keeper.notice()
    agent.wait(5)
    assert len(striker.asked) == 2, striker.asked
    assert (RULE_OF_NIC1, True) in agent.server.rules, "what the kernel does alone is put back"
    agent.network._striker = NoFaults()
    agent.wait(301)
    assert agent.keeper.read_back(1).deviations == ()
