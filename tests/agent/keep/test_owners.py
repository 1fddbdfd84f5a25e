"""A state that comes back takes no NIC from an owner who uses it for something else since it was
given back: the keeper on the network in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from placewire.agent.contract.state import LeaseState, NicFacts, ObservedState
from placewire.agent.reconcile.unmarkable import Unmarked
from tests.agent import memory_agent
from tests.agent.faults import Fault, NoFaults, Place
from tests.agent.memory_agent import FACTS, WAY, MemoryAgent
from tests.agent.memory_drivers import MemoryNetwork
from tests.agent.memory_server import (
    BridgeRow,
    Link,
    Port,
    base_address,
    base_addresses,
    base_routes,
    mac,
    sysctls_of,
)
from tests.agent.states import desired_state

PLAN = "test-plan"
STORAGE = "192.168.5.1/24"
LEASE_SECONDS = 600.0
LONGEST_RETRY_SECONDS = 301.0


class Use(NamedTuple):
    """What nic0's owner does with it; how that is told; how the owner ends it."""

    begin: Callable[[MemoryAgent], object]
    told: str
    end: Callable[[MemoryAgent], object]


def give_address(agent: MemoryAgent) -> None:
    link = agent.server.links["nic0"]
    link.addresses.append(STORAGE)
    link.theirs.add(STORAGE)


def take_address(agent: MemoryAgent) -> None:
    link = agent.server.links["nic0"]
    link.addresses.remove(STORAGE)
    link.theirs.discard(STORAGE)


def protect(agent: MemoryAgent, *nics: str) -> None:
    """An operator changes the list of protected interfaces, and restarts the agent."""
    protected = frozenset({"mgmt", *nics})
    memory_agent.FACTS = dataclasses.replace(FACTS, protected=protected)
    agent.restart()


def reach_over(agent: MemoryAgent, *interfaces: str) -> None:
    memory_agent.WAY = dataclasses.replace(WAY, interfaces=frozenset(interfaces))


def make_port(agent: MemoryAgent) -> None:
    ports = {"nic0": Port("nic0", False)}
    agent.server.bridges["br0"] = BridgeRow("br0", False, "nic0", 1500, ports)
    agent.server.switch_follows()


def free_port(agent: MemoryAgent) -> None:
    del agent.server.bridges["br0"]
    agent.server.switch_follows()


def use_address_elsewhere(agent: MemoryAgent) -> None:
    agent.server.links["nic0"].addresses.remove(base_address("nic0"))
    agent.server.links["eth9"] = Link(mac("eth9"), addresses=[*base_addresses("nic0")])


def end_that(agent: MemoryAgent) -> None:
    del agent.server.links["eth9"]
    agent.server.links["nic0"].addresses.append(base_address("nic0"))


def set_root(agent: MemoryAgent) -> None:
    agent.server.links["nic0"].root = "tbf"


def remove_root(agent: MemoryAgent) -> None:
    agent.server.links["nic0"].without_root()


USES = {
    "an address": Use(give_address, f"it holds {STORAGE}, which the plan does not", take_address),
    "protected": Use(
        lambda a: protect(a, "nic0"), "it is protected in this agent's configuration", protect
    ),
    "the way to the controller": Use(
        lambda a: reach_over(a, "nic0"), "it is the way by which", reach_over
    ),
    "another bridge": Use(make_port, "it is already a port of br0", free_port),
    "a queueing discipline": Use(set_root, "it has a tbf queueing discipline", remove_root),
    "its address elsewhere": Use(
        use_address_elsewhere, "address 10.7.0.1/24 overlaps with 10.7.0.1/24 of eth9", end_that
    ),
}  # fmt: skip
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryAgent:
    """Decision 1 is kept on nic0 and nic1; decision 2 has nic1 only, under a lease."""
    monkeypatch.setattr(memory_agent, "FACTS", FACTS)
    monkeypatch.setattr(memory_agent, "WAY", WAY)
    agent = MemoryAgent(tmp_path)
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    agent.keeper.commit(1, None)
    assert agent.keeper.stage(desired_state(2, nics=("nic1",)), 30).succeeded
    agent.keeper.commit(2, LEASE_SECONDS)
    assert agent.server.links["nic0"].addresses == [*base_addresses("nic0")], "it was given back"
    return agent


def nic0(agent: MemoryAgent) -> object:
    """All of nic0 that its owner can see, and whose port it is."""
    server = agent.server
    (facts,) = (nic for nic in server._nics() if nic.name == "nic0")
    sysctls = {name: server.sysctls[name] for name in sysctls_of("nic0")}
    return facts, sysctls, list(server.main_routes)


def lease_ends(agent: MemoryAgent) -> LeaseState:
    agent.wait(LEASE_SECONDS + 1)
    return agent.keeper.lease


def is_whole(agent: MemoryAgent, generation: int = 1) -> bool:
    lease, server = agent.keeper.lease, agent.server
    return (
        (lease.phase, lease.generation, lease.detail) == ("committed", generation, "")
        and {name for name, row in server.bridges.items() if row.ours} == {"pw-nic0", "pw-nic1"}
        and not server.links["nic0"].addresses
        and base_address("nic0") in server.links["pw-nic0"].addresses
        and not agent.keeper.read_back(generation).deviations
    )


def test_without_another_use_all_comes_back(agent: MemoryAgent) -> None:
    lease_ends(agent)
    assert is_whole(agent)
    assert agent.keeper.destroy(PLAN).succeeded
    assert agent.server.links["nic0"].addresses == [*base_addresses("nic0")]


@each_use
def test_a_lease_that_ends_leaves_the_nic_to_its_owner_and_brings_back_the_rest(
    agent: MemoryAgent, use: Use
) -> None:
    use.begin(agent)
    before = nic0(agent)
    lease = lease_ends(agent)
    assert (lease.phase, lease.generation) == ("failed", 1)
    assert lease.detail.startswith("NIC nic0: is its owner's, and is not taken: ")
    assert use.told in lease.detail
    assert nic0(agent) == before and "pw-nic0" not in agent.server.links
    assert agent.network.harmed == []
    rules = [rule for rule, ours in agent.server.rules if ours]
    assert rules == list(desired_state(1, nics=("nic1",)).rules), "the rest is back"
    agent.restart()
    agent.wait(LONGEST_RETRY_SECONDS)
    assert nic0(agent) == before and agent.keeper.lease.phase == "failed", "and later neither"
    use.end(agent)
    for _ in range(2):
        agent.wait(LONGEST_RETRY_SECONDS)
    assert is_whole(agent)
    assert agent.keeper.destroy(PLAN).succeeded
    assert agent.server.links["nic0"].addresses == [*base_addresses("nic0")]


@each_use
def test_a_request_to_go_back_is_refused_before_anything_changes(
    agent: MemoryAgent, use: Use
) -> None:
    use.begin(agent)
    before = nic0(agent), agent.keeper.lease
    report = agent.keeper.restore(2)
    assert not report.succeeded and report.changes == ()
    assert any(use.told in refusal.what for refusal in report.refusals), report.refusals
    assert all(refusal.where == "NIC nic0" and refusal.remedy for refusal in report.refusals)
    assert (nic0(agent), agent.keeper.lease) == before
    use.end(agent)
    assert agent.keeper.restore(2).succeeded and is_whole(agent)


def test_what_is_not_back_can_be_destroyed(agent: MemoryAgent) -> None:
    give_address(agent)
    before = nic0(agent)
    assert lease_ends(agent).phase == "failed"
    assert agent.keeper.destroy(PLAN).succeeded and agent.keeper.lease.is_idle
    assert nic0(agent) == before
    assert agent.server.links["nic1"].addresses == [*base_addresses("nic1")]


def test_a_nic_that_a_failed_undo_gave_back_is_forgotten(agent: MemoryAgent) -> None:
    """The lease of the next decision, over another NIC alone, ends; later the owner of that NIC
    takes its address off."""
    agent.keeper.commit(2, None)
    assert agent.keeper.stage(desired_state(3, nics=("nic0",)), 30).succeeded
    agent.keeper.commit(3, LEASE_SECONDS)
    agent.server.links["nic1"].addresses.append(STORAGE)
    assert lease_ends(agent).phase == "failed"
    assert agent.server.links["nic0"].addresses == [*base_addresses("nic0")], "given back"
    agent.server.links["nic0"].addresses = []
    for _ in range(3):
        agent.wait(LONGEST_RETRY_SECONDS)
    assert agent.server.links["nic0"].addresses == [] and agent.keeper.lease.phase == "failed"


class Unwilling(NoFaults):
    """Every effect fails until `willing` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.willing = False

    def at(self, place: Place, what: str) -> Fault | None:
        return Fault.CALL_FAILS if place is Place.EFFECT and not self.willing else None


def test_a_nic_that_a_failed_attempt_did_not_touch_is_its_owners_still(agent: MemoryAgent) -> None:
    """The first attempt wrote down what nic0 held, and failed before it changed anything."""
    striker = Unwilling()
    agent.network = MemoryNetwork(agent.server, striker)
    agent.restart()
    assert lease_ends(agent).phase == "failed"
    striker.willing = True
    assert "pw-nic0" not in agent.server.links
    give_address(agent)
    before = nic0(agent)
    for _ in range(2):
        agent.wait(LONGEST_RETRY_SECONDS)
    assert nic0(agent) == before and STORAGE in agent.keeper.lease.detail
    take_address(agent)
    for _ in range(2):
        agent.wait(LONGEST_RETRY_SECONDS)
    assert is_whole(agent)


def test_a_nic_without_a_cable_comes_back(agent: MemoryAgent) -> None:
    observe = agent.network.observe

    def unplugged(nic: NicFacts) -> NicFacts:
        return nic.model_copy(update={"carrier": False}) if nic.name == "nic0" else nic

    def seen(sought: Unmarked) -> ObservedState:
        found = observe(sought)
        return found.model_copy(update={"nics": tuple(map(unplugged, found.nics))})

    agent.network.observe = seen  # type: ignore[method-assign]
    lease_ends(agent)
    assert is_whole(agent)


@pytest.mark.parametrize("at_start", [False, True], ids=["healing", "the agent's start"])
def test_a_nic_that_somebody_took_out_of_our_bridge_for_another_use_is_left_to_them(
    agent: MemoryAgent, *, at_start: bool
) -> None:
    lease_ends(agent)
    server = agent.server
    del server.bridges["pw-nic0"]
    server.switch_follows()
    server.links["nic0"].addresses = [*base_addresses("nic0")]
    server.main_routes = [*base_routes("nic0")]
    give_address(agent)
    of_nic1 = desired_state(1).rules[1]
    server.rules.remove((of_nic1, True))
    if at_start:
        agent.restart()
    else:
        agent.keeper.notice()
        agent.wait(5)
    assert server.links["nic0"].addresses == [*base_addresses("nic0"), STORAGE]
    assert "pw-nic0" not in server.links
    assert [rule for rule, ours in server.rules if ours] == [of_nic1], "the rest is put back"
    assert any(STORAGE in note for note in agent.keeper.drift.notes) or at_start
    take_address(agent)
    for _ in range(3):
        agent.wait(LONGEST_RETRY_SECONDS)
    assert is_whole(agent)


def test_a_state_that_is_staged_again_writes_down_what_a_nic_holds_that_its_owner_had_back(
    agent: MemoryAgent,
) -> None:
    lease_ends(agent)
    server = agent.server
    del server.bridges["pw-nic0"]
    server.switch_follows()
    server.links["nic0"].without_root()
    server.links["nic0"].addresses = [*base_addresses("nic0")]
    server.main_routes = [*base_routes("nic0")]
    give_address(agent)
    agent.keeper.notice()
    agent.wait(5)
    assert any(STORAGE in note for note in agent.keeper.drift.notes), "it is its owner's"
    take_address(agent)
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    assert is_whole(agent)
    agent.restart()
    assert agent.keeper.destroy(PLAN).succeeded
    assert server.links["nic0"].addresses == [*base_addresses("nic0")]
    assert server.main_routes == [*base_routes("nic0")]


@pytest.mark.parametrize("at_start", [False, True], ids=["healing", "the agent's start"])
@pytest.mark.parametrize("removed", ["bridge", "port"])
def test_a_nic_that_somebody_took_out_of_our_bridge_and_gave_another_address_gets_its_own_back(
    agent: MemoryAgent, removed: str, *, at_start: bool
) -> None:
    """Nobody has given it what it held; the agent does, and cuts off nothing of theirs."""
    lease_ends(agent)
    server = agent.server
    if removed == "bridge":
        del server.bridges["pw-nic0"]
    else:
        del server.bridges["pw-nic0"].ports["nic0"]
    server.switch_follows()
    give_address(agent)
    for _ in range(2):
        if at_start:
            agent.restart()
        else:
            agent.keeper.notice()
            agent.wait(5)
        assert set(server.links["nic0"].addresses) == {*base_addresses("nic0"), STORAGE}
        assert server.main_routes == [*base_routes("nic0")] and "pw-nic0" not in server.links
        assert agent.network.harmed == []
    assert at_start or any(STORAGE in note for note in agent.keeper.drift.notes)
    take_address(agent)
    for _ in range(3):
        agent.wait(LONGEST_RETRY_SECONDS)
    assert is_whole(agent)
    assert agent.keeper.destroy(PLAN).succeeded
    assert server.links["nic0"].addresses == [*base_addresses("nic0")]
    assert server.main_routes == [*base_routes("nic0")]
