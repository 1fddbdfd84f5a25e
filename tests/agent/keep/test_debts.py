"""Undoing while a NIC is away, the disk is full, the clock is wrong, or the state is lost."""

from __future__ import annotations

import errno
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.entries import Address
from placewire.agent.contract.state import LeaseState, TakenOver
from placewire.agent.store import COPY_FILE, STATE_FILE
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import (
    MANAGEMENT,
    BridgeRow,
    Port,
    base_addresses,
    base_routes,
    sysctls_of,
)
from tests.agent.states import desired_state

PLAN = "test-plan"


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    return MemoryAgent(tmp_path)


def in_force(agent: MemoryAgent, *, lease_seconds: float | None = None, **changes: Any) -> None:
    generation = agent.keeper.lease.highest_generation + 1
    report = agent.keeper.stage(desired_state(generation, **changes), 30)
    assert report.succeeded, report.refusals
    agent.keeper.commit(generation, lease_seconds)


def whole(agent: MemoryAgent) -> bool:
    server = agent.server
    return (
        all(server.links[nic].addresses == [*base_addresses(nic)] for nic in ("nic0", "nic1"))
        and all(server.links[nic].up for nic in ("nic0", "nic1"))
        and server.main_routes == [*base_routes("nic0")]
        and set(server.sysctls.values()) == {"0"}
        and not server.bridges
    )


# -- a NIC that is away --------------------------------------------------------------------------


def test_a_nic_that_is_away_at_the_undo_is_owed_what_it_held(agent: MemoryAgent) -> None:
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    report = agent.keeper.destroy(PLAN)
    assert not report.succeeded, "an undo is not done while something is owed"
    (refusal,) = report.refusals
    assert "NIC nic0" in refusal.where and "10.7.0.1/24" in refusal.what
    assert "--give-up nic0" in refusal.remedy
    assert agent.keeper.lease.is_idle and "nic0" in agent.keeper.lease.owed[0]
    assert not agent.keeper.destroy(PLAN).succeeded, "asked again, it is told again"
    assert not agent.keeper.restore(1).succeeded

    agent.restart()
    assert agent.keeper.lease.owed, "a debt outlives the agent"
    agent.server.nic_comes_back("nic0")
    agent.keeper.notice()
    agent.wait(5)
    assert whole(agent)
    assert not agent.keeper.lease.owed
    assert agent.keeper.destroy(PLAN).succeeded
    log = (agent.directory / "audit.jsonl").read_text()
    assert '"event": "pay"' in log and '"event": "paid"' in log


def test_a_debt_is_paid_without_any_event_within_a_minute(agent: MemoryAgent) -> None:
    in_force(agent, lease_seconds=30)
    agent.server.nic_vanishes("nic0")
    agent.wait(31)
    assert agent.keeper.lease.is_idle and agent.keeper.lease.owed
    agent.wait(61)
    agent.server.nic_comes_back("nic0")
    assert agent.keeper.seconds_until_due() is not None
    agent.wait(61)
    assert whole(agent)


def test_a_debt_is_paid_at_the_agents_start(agent: MemoryAgent) -> None:
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    agent.keeper.destroy(PLAN)
    agent.server.nic_comes_back("nic0")
    agent.restart()
    assert whole(agent) and not agent.keeper.lease.owed


def test_another_nic_of_that_name_is_not_paid(agent: MemoryAgent) -> None:
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    agent.keeper.destroy(PLAN)
    agent.server.nic_comes_back("nic0")
    agent.server.links["nic0"].mac = "02:00:00:00:00:fe"
    agent.wait(61)
    assert agent.server.links["nic0"].addresses == [] and agent.keeper.lease.owed
    agent.server.nic_vanishes("nic0")
    agent.server.nic_comes_back("nic0")
    agent.wait(61)
    assert whole(agent)


OTHER_MAC, FOREIGN = "02:00:00:00:01:aa", "192.168.50.1/24"


def replace_nic0_and_lose_its_bridge(agent: MemoryAgent) -> dict[str, str]:
    """Another adapter, which its owner uses, has the name now. Returns its sysctls."""
    server = agent.server
    del server.bridges["pw-nic0"]
    server.switch_follows()
    server.nic_vanishes("nic0")
    server.nic_comes_back("nic0", OTHER_MAC)
    server.sysctls.update(dict.fromkeys(sysctls_of("nic0"), "2"))
    link = server.links["nic0"]
    link.up = True
    link.addresses.append(FOREIGN)
    link.theirs.add(FOREIGN)
    return sysctls_of_nic0(agent)


def sysctls_of_nic0(agent: MemoryAgent) -> dict[str, str]:
    return {name: agent.server.sysctls[name] for name in sysctls_of("nic0")}


def test_an_undo_writes_no_sysctl_of_another_adapter(agent: MemoryAgent) -> None:
    in_force(agent)
    theirs = replace_nic0_and_lose_its_bridge(agent)
    agent.keeper.destroy(PLAN)
    assert sysctls_of_nic0(agent) == theirs
    assert agent.server.links["nic0"].addresses == [FOREIGN]
    (owed,) = agent.keeper.lease.owed
    assert "10.7.0.1/24" in owed and f"{sysctls_of('nic0')[0]} = 0" in owed


@pytest.mark.parametrize("at_start", [False, True], ids=["healing", "the agent's start"])
def test_another_adapter_that_its_owner_uses_is_not_taken(
    agent: MemoryAgent, *, at_start: bool
) -> None:
    in_force(agent)
    theirs = replace_nic0_and_lose_its_bridge(agent)
    if at_start:
        agent.restart()
    agent.keeper.notice()
    agent.wait(5)
    server = agent.server
    assert set(server.bridges) == {"pw-nic1"} and not agent.network.harmed
    assert server.links["nic0"].addresses == [FOREIGN] and sysctls_of_nic0(agent) == theirs
    assert at_start or any(FOREIGN in note for note in agent.keeper.drift.notes)
    (owed,) = agent.keeper.lease.owed
    assert "02:00:00:00:00:6a" in owed and "10.7.0.1/24" in owed and sysctls_of("nic0")[0] in owed
    server.nic_vanishes("nic0")
    server.nic_comes_back("nic0")
    agent.keeper.notice()
    for _ in range(3):
        agent.wait(301)
    assert set(server.bridges) == {"pw-nic0", "pw-nic1"} and not agent.keeper.lease.owed
    assert agent.keeper.destroy(PLAN).succeeded and whole(agent)


def test_another_adapter_that_nobody_uses_is_taken_and_gets_nothing_of_the_former(
    agent: MemoryAgent,
) -> None:
    in_force(agent)
    replace_nic0_and_lose_its_bridge(agent)
    link = agent.server.links["nic0"]
    link.addresses.clear()
    link.theirs.clear()
    agent.keeper.notice()
    agent.wait(5)
    assert "pw-nic0" in agent.server.bridges and agent.keeper.drift.notes == ()
    agent.keeper.destroy(PLAN)
    assert agent.server.links["nic0"].addresses == [] and not agent.server.bridges
    assert set(sysctls_of_nic0(agent).values()) == {"2"}
    assert "10.7.0.1/24" in agent.keeper.lease.owed[0]


def test_a_nic_that_came_back_as_somebodys_port_waits(agent: MemoryAgent) -> None:
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    agent.keeper.destroy(PLAN)
    agent.server.nic_comes_back("nic0")
    observe = agent.network.observe

    def as_port(sought: Any) -> Any:
        seen = observe(sought)
        nics = (n.model_copy(update={"bridge": "br0"}) if n.name == "nic0" else n
                for n in seen.nics)  # fmt: skip
        return seen.model_copy(update={"nics": tuple(nics)})

    agent.network.observe = as_port  # type: ignore[method-assign]
    agent.wait(61)
    assert agent.server.links["nic0"].addresses == [] and agent.keeper.lease.owed


def test_a_nic_that_somebody_made_a_port_is_given_nothing_until_it_is_free(
    agent: MemoryAgent,
) -> None:
    """Its addresses would be cut off there."""
    in_force(agent)
    server = agent.server
    del server.bridges["pw-nic0"]
    server.bridges["br0"] = BridgeRow("br0", False, "nic0", 1500, {"nic0": Port("nic0", False)})
    server.switch_follows()
    report = agent.keeper.destroy(PLAN)
    assert "port of somebody's bridge" in report.refusals[0].what
    assert server.links["nic0"].addresses == [] and "br0" in server.bridges
    del server.bridges["br0"]
    server.switch_follows()
    agent.wait(61)
    assert whole(agent) and not agent.keeper.lease.owed


def test_a_debt_can_be_given_up(agent: MemoryAgent) -> None:
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    agent.keeper.destroy(PLAN)
    assert agent.keeper.give_up("nic1") == ()
    (said,) = agent.keeper.give_up("nic0")
    assert "10.7.0.1/24" in said and not agent.keeper.lease.owed
    assert "10.7.0.1/24" in (agent.directory / "audit.jsonl").read_text()
    assert agent.keeper.destroy(PLAN).succeeded


def test_the_next_plan_finds_a_nic_with_all_that_it_was_owed(agent: MemoryAgent) -> None:
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    agent.keeper.destroy(PLAN)
    agent.server.nic_comes_back("nic0")
    in_force(agent)
    assert agent.keeper.destroy(PLAN).succeeded
    assert whole(agent)


def test_a_state_without_the_nic_that_is_away_leaves_a_debt(agent: MemoryAgent) -> None:
    in_force(agent)
    agent.server.nic_vanishes("nic0")
    in_force(agent, nics=("nic1",))
    assert "nic0" in agent.keeper.lease.owed[0]
    agent.server.nic_comes_back("nic0")
    agent.wait(61)
    assert agent.server.links["nic0"].addresses == [*base_addresses("nic0")]
    assert not agent.keeper.lease.owed and agent.keeper.destroy(PLAN).succeeded
    assert whole(agent)


def test_what_was_given_back_is_its_owners_again(agent: MemoryAgent) -> None:
    """Its owner gives it another address while the baseline, which covers it, waits beneath."""
    in_force(agent)
    generation = agent.keeper.lease.generation + 1
    assert agent.keeper.stage(desired_state(generation, nics=("nic1",)), 30).succeeded
    agent.server.links["nic0"].addresses = ["10.7.0.77/24"]
    agent.wait(10)
    assert agent.server.links["nic0"].addresses == ["10.7.0.77/24"]
    agent.wait(31)
    assert agent.keeper.lease.generation == generation - 1, "the baseline is back"
    assert agent.keeper.destroy(PLAN).succeeded
    assert agent.server.links["nic0"].addresses == ["10.7.0.77/24"]


def test_a_nic_that_was_away_when_its_baseline_came_back_is_written_down_first(
    agent: MemoryAgent,
) -> None:
    in_force(agent)
    generation = agent.keeper.lease.generation + 1
    assert agent.keeper.stage(desired_state(generation, nics=("nic1",)), 30).succeeded
    agent.server.nic_vanishes("nic0")
    agent.keeper.restore(generation)
    agent.server.nic_comes_back("nic0")
    agent.server.set_up("nic0", True)
    agent.server.links["nic0"].addresses = ["10.7.0.1/24"]
    agent.keeper.notice()
    for _ in range(3):
        agent.wait(61)
    assert agent.keeper.lease.generation == generation - 1, agent.keeper.lease
    assert agent.keeper.destroy(PLAN).succeeded
    assert agent.server.links["nic0"].addresses == ["10.7.0.1/24"]


# -- the clock ------------------------------------------------------------------------------------


def expires_in(agent: MemoryAgent) -> float:
    lease: LeaseState = agent.keeper.lease
    assert lease.expires_unix is not None
    return lease.expires_unix - agent.unix


@pytest.mark.parametrize("wrong_by", [-86_400.0, 86_400.0])
def test_a_clock_that_is_wrong_when_the_agent_starts_moves_no_lease(
    agent: MemoryAgent, wrong_by: float
) -> None:
    in_force(agent, lease_seconds=30)
    agent.boot_seconds += 10
    agent.unix += 10 + wrong_by
    agent.restart()
    assert expires_in(agent) == pytest.approx(20)
    agent.unix -= wrong_by
    agent.wait(1)
    assert expires_in(agent) == pytest.approx(19), "the clock was put right"
    agent.wait(20)
    assert agent.keeper.lease.is_idle and whole(agent)


def test_a_clock_that_is_behind_after_a_boot_gives_no_lease_more_than_it_had(
    agent: MemoryAgent,
) -> None:
    in_force(agent, lease_seconds=30)
    agent.reboot(seconds=-86_400)
    assert expires_in(agent) == pytest.approx(30)
    agent.wait(31)
    assert agent.keeper.lease.is_idle and whole(agent)


def test_a_lease_that_ran_out_while_the_machine_was_off_is_undone(agent: MemoryAgent) -> None:
    in_force(agent, lease_seconds=30)
    agent.reboot(seconds=60)
    assert agent.keeper.lease.is_idle and whole(agent)


def test_the_clocks_are_as_of_the_last_save(agent: MemoryAgent) -> None:
    """A clock that is set while the agent runs, and then the agent starts anew."""
    in_force(agent, lease_seconds=300)
    agent.unix += 5000
    agent.wait(10)
    assert expires_in(agent) == pytest.approx(290)
    agent.restart()
    assert expires_in(agent) == pytest.approx(290)


# -- the disk -------------------------------------------------------------------------------------


class FullDisk:
    def __init__(self, agent: MemoryAgent) -> None:
        self._store, self._save = agent.store, agent.store.save
        agent.store.save = self._fail  # type: ignore[method-assign]

    def _fail(self, kept: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def emptied(self) -> None:
        self._store.save = self._save  # type: ignore[method-assign]


def test_an_undo_is_done_once_the_disk_has_it(agent: MemoryAgent) -> None:
    in_force(agent)
    disk = FullDisk(agent)
    report = agent.keeper.destroy(PLAN)
    assert whole(agent), "a full disk keeps nothing from being undone"
    assert not report.succeeded and "No space left" in report.refusals[0].what
    assert agent.keeper.lease.phase == "failed"
    disk.emptied()
    agent.wait(6)
    assert agent.keeper.lease.is_idle and agent.keeper.destroy(PLAN).succeeded
    agent.restart()
    assert agent.keeper.lease.is_idle and whole(agent)


def rate_of(agent: MemoryAgent, nic: str) -> int:
    """Of the queue to s2, in bits per second."""
    port = agent.server.port(nic)
    assert port is not None and port.qos is not None
    return port.qos.queues[2].max_bits_per_second


def goes_on_once_emptied(agent: MemoryAgent, disk: FullDisk) -> None:
    disk.emptied()
    agent.wait(301)
    agent.wait(301)
    assert agent.keeper.lease.is_kept and agent.keeper.read_back(1).deviations == ()
    agent.restart()
    assert agent.keeper.destroy(PLAN).succeeded and whole(agent)


def test_a_full_disk_keeps_a_baseline_from_no_nic_that_is_written_down(agent: MemoryAgent) -> None:
    in_force(agent)
    in_force(agent, nics=("nic0",), rates=(5_000_000, 5_000_000), lease_seconds=60)
    disk = FullDisk(agent)
    agent.wait(61)
    lease = agent.keeper.lease
    assert (lease.phase, lease.generation) == ("failed", 1)
    assert "NIC nic1" in lease.detail and "No space left" in lease.detail
    assert rate_of(agent, "nic0") == desired_state().queues[2].max_bits_per_second
    assert "pw-nic1" not in agent.server.bridges
    assert agent.server.links["nic1"].addresses == [*base_addresses("nic1")]
    goes_on_once_emptied(agent, disk)


def test_a_full_disk_keeps_only_sysctls_from_a_nic_of_which_all_else_is_written_down(
    agent: MemoryAgent,
) -> None:
    in_force(agent)
    in_force(agent, sysctls=(), rates=(5_000_000, 5_000_000), lease_seconds=60)
    disk = FullDisk(agent)
    agent.wait(61)
    lease = agent.keeper.lease
    assert lease.phase == "failed" and "sysctl net.ipv4.conf.nic1.rp_filter" in lease.detail
    assert "NIC nic" not in lease.detail
    for nic in ("nic0", "nic1"):
        assert rate_of(agent, nic) == desired_state().queues[2].max_bits_per_second
        assert agent.server.sysctls[f"net.ipv4.conf.{nic}.rp_filter"] == "0"
    goes_on_once_emptied(agent, disk)


def test_another_adapter_is_not_taken_while_the_disk_is_full(agent: MemoryAgent) -> None:
    """It has the name of a NIC that is written down."""
    server, rule = agent.server, (desired_state(1).rules[0], True)
    in_force(agent)
    server.nic_vanishes("nic1")
    del server.bridges["pw-nic1"]
    server.switch_follows()
    server.nic_comes_back("nic1", OTHER_MAC)
    server.configure("nic1")
    server.rules.remove(rule)
    disk = FullDisk(agent)
    agent.keeper.notice()
    agent.wait(5)
    assert rule in server.rules, "the rest is put back"
    assert "pw-nic1" not in server.bridges
    assert any("NIC nic1" in n and "No space left" in n for n in agent.keeper.drift.notes)
    disk.emptied()
    agent.wait(301)
    assert agent.keeper.read_back(1).deviations == ()
    held = [taken.mac for taken in agent.keeper._memory.kept.ledger.nics if taken.nic == "nic1"]
    assert held == [OTHER_MAC]


# -- the state on disk ----------------------------------------------------------------------------


def lose_state(agent: MemoryAgent) -> None:
    for name in (STATE_FILE, COPY_FILE):
        (agent.directory / name).unlink()


def test_marks_that_no_state_knows_are_told_and_never_called_absent(agent: MemoryAgent) -> None:
    in_force(agent)
    lose_state(agent)
    agent.restart()
    before = agent.server.links["pw-nic0"].addresses[:]
    (problem,) = agent.keeper.observe().state.problems
    assert "pw-nic0" in problem and "--from-marks" in problem
    for report in (
        agent.keeper.stage(desired_state(9), 30),
        agent.keeper.destroy(PLAN),
        agent.keeper.restore(1),
    ):
        assert not report.succeeded and not report.changes
        assert "--from-marks" in report.refusals[0].remedy
    assert "--from-marks" in agent.keeper.preview(desired_state(9)).refusals[0].remedy
    assert agent.server.links["pw-nic0"].addresses == before


def test_marks_give_back_what_nics_held(agent: MemoryAgent) -> None:
    in_force(agent)
    assert agent.server.sysctls[sysctls_of("nic0")[0]] == "1", "what is to go back"
    lose_state(agent)
    agent.restart()
    assert agent.keeper.restore_from_marks().succeeded
    assert whole(agent)
    assert agent.keeper.restore_from_marks().succeeded, "there is nothing more to take back"
    in_force(agent)
    assert agent.keeper.destroy(PLAN).succeeded and whole(agent)


def test_marks_without_a_note_give_back_what_stands_on_the_bridge(agent: MemoryAgent) -> None:
    """As a former version made them. The sysctls of the NIC are not known then."""
    in_force(agent)
    for row in agent.server.bridges.values():
        row.held = None
    lose_state(agent)
    agent.restart()
    assert agent.keeper.restore_from_marks().succeeded
    server = agent.server
    assert server.links["nic0"].addresses == [*base_addresses("nic0")] and not server.bridges
    assert server.main_routes == [*base_routes("nic0")]


def test_a_mark_follows_the_plan_s_addresses(agent: MemoryAgent) -> None:
    """A change that only gives an address: it must be known as ours when the state is lost."""
    in_force(agent)
    another = Address(interface="pw-nic0", address="10.77.0.1/24")
    in_force(agent, addresses=(*desired_state().addresses, another))
    lose_state(agent)
    agent.restart()
    assert agent.keeper.restore_from_marks().succeeded
    assert whole(agent)


@pytest.mark.parametrize("mark", ["none, as 0.1.0", "spoilt"])
def test_a_missing_mark_is_made_at_the_start(agent: MemoryAgent, mark: str) -> None:
    in_force(agent)
    held = {name: row.held for name, row in agent.server.bridges.items()}
    for row in agent.server.bridges.values():
        assert row.held is not None
        spoilt = row.held.model_copy(update={"addresses": ("10.0.0.9/8",)})
        row.held = spoilt if mark == "spoilt" else None
    agent.restart()
    agent.wait(61)
    assert {name: row.held for name, row in agent.server.bridges.items()} == held
    assert agent.keeper.drift.notes == ()


def marked(nic: str, port: str, **held: Any) -> BridgeRow:
    """A bridge that somebody who may write to Open vSwitch made and marked."""
    mark = TakenOver(**{"nic": nic, "addresses": (), "was_up": False, "bridge": "pw-x", **held})
    ports = {name: Port(name, True) for name in ("pw-x", port)}
    return BridgeRow("pw-x", True, port, 1500, ports, held=mark)


@pytest.mark.parametrize(
    ("row", "what", "remedy"),
    [
        (marked(MANAGEMENT, MANAGEMENT), "mgmt, which is protected", "ovs-vsctl del-br pw-x"),
        (marked(MANAGEMENT, "nic2"), "mgmt, which is protected", "the protected list"),
        (marked("nic0", "nic2"), "nic0, which is no port of this", "ovs-vsctl add-port pw-x nic0"),
        (marked("n; reboot", "nic2"), "which is no port of this", "add-port pw-x 'n; reboot'"),
        (marked("nic0", "nic2", bridge="pw-nic0"), "nic0, which is no port", "placewire-held"),
        (
            marked("nic2", "nic2", routes=(f"10.0.0.0/8 via 10.9.0.9 dev {MANAGEMENT}",)),
            "nic2 held the route '10.0.0.0/8 via 10.9.0.9 dev mgmt', which is not through it",
            "ovs-vsctl remove bridge pw-x external_ids placewire-held",
        ),
        (marked("nic2", "nic2", routes=("10.0.0.0/8",)), "is not through it", "placewire-held"),
        (
            marked("nic2", "nic2", routes=(f"0.0.0.0/1 via 10.9.0.66 dev nic2 oif {MANAGEMENT}",)),
            "dev nic2 oif mgmt', which has words that `ip` does not print",
            "placewire-held",
        ),
        (
            marked("nic2", "nic2", addresses=("10.7.9.1/24 dev nic2 home",)),
            "nic2 held '10.7.9.1/24 dev nic2 home', which has words",
            "placewire-held",
        ),
    ],
)  # fmt: skip
def test_a_mark_is_believed_about_its_own_nic_alone(
    agent: MemoryAgent, row: BridgeRow, what: str, remedy: str
) -> None:
    in_force(agent)
    lose_state(agent)
    agent.restart()
    server = agent.server
    server.bridges["pw-x"] = row
    server.switch_follows()
    before = deepcopy((server.links, server.main_routes, server.sysctls, server.bridges))
    report = agent.keeper.restore_from_marks()
    (refusal,) = report.refusals
    assert refusal.where == "bridge pw-x" and what in refusal.what and remedy in refusal.remedy
    assert (server.links, server.main_routes, server.sysctls, server.bridges) == before
    assert agent.keeper.lease.is_idle and not report.changes
    del server.bridges["pw-x"]
    server.switch_follows()
    assert agent.keeper.restore_from_marks().succeeded, "the remedy is one"
    assert whole(agent)


def test_marks_of_a_nic_that_is_away_become_a_debt(agent: MemoryAgent) -> None:
    in_force(agent)
    lose_state(agent)
    agent.server.nic_vanishes("nic0")
    agent.restart()
    report = agent.keeper.restore_from_marks()
    assert "10.7.0.1/24" in report.refusals[0].what and agent.keeper.lease.owed
    agent.server.nic_comes_back("nic0")
    agent.wait(61)
    assert whole(agent)
