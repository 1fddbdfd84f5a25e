"""The laws by which runs with faults are judged find what they are for."""

from __future__ import annotations

import random

import pytest

from placewire.agent.contract.state import LeaseState
from tests.agent.fault_laws import Decisions, bare, other_nics
from tests.agent.fault_leases import LATE_SECONDS, Leases
from tests.agent.foreign_process import Others
from tests.agent.memory_server import (
    BridgeRow,
    MemoryServer,
    Port,
    base_addresses,
    sysctls_of,
)
from tests.agent.memory_snapshot import snapshot


def _server() -> tuple[MemoryServer, Others]:
    server = MemoryServer()
    return server, Others(random.Random(0), server)


def test_a_nic_that_came_back_bare_is_found() -> None:
    server, others = _server()
    before = snapshot(server)
    server.nic_vanishes("nic0")
    assert bare(server, before, others) == [], "while it is away, only the debt is judged"
    server.nic_comes_back("nic0")
    assert bare(server, before, others) == [
        "address nic0 10.7.0.1/24: was there, is gone",
        "address nic0 fd07::1/64: was there, is gone",
        "link nic0: up was yes, is no",
        "route 10.50.0.0/16 via 10.7.0.254 dev nic0: was there, is gone",
        "route 2001:db8::/32 via fd07::fe dev nic0 metric 1024: was there, is gone",
    ]
    server.configure("nic0")
    assert bare(server, before, others) == []


def test_a_renamed_nic_keeps_what_it_had_under_its_other_name() -> None:
    server, others = _server()
    before = snapshot(server)
    server.sysctls[sysctls_of("nic0")[0]] = "1"
    server.nic_renamed("nic0", "away-nic0")
    assert server.links["away-nic0"].addresses == [*base_addresses("nic0")]
    assert bare(server, before, others) == [] and other_nics(server) == {"nic0"}
    server.nic_renamed("away-nic0", "nic0")
    assert bare(server, before, others) == [f"sysctl {sysctls_of('nic0')[0]}: was 0, is 1"]


def test_another_nic_of_the_same_name_is_another_nic() -> None:
    server, _ = _server()
    server.nic_vanishes("nic1")
    server.nic_comes_back("nic1", "02:00:00:00:01:01")
    assert other_nics(server) == {"nic1"}


@pytest.mark.parametrize("seed", range(20))
def test_what_others_made_inside_ours_is_missed_when_it_is_gone(seed: int) -> None:
    server = MemoryServer()
    others = Others(random.Random(seed), server)
    row = BridgeRow("pw-nic0", True, "nic0", 1500, {"nic0": Port("nic0", True)})
    server.bridges["pw-nic0"] = row
    server.switch_follows()
    server.links["pw-nic0"].up = True
    before, made = server.foreign_objects(), ""
    while not made or made.startswith("rule"):  # A rule goes with no bridge.
        made = others.make_inside()
    during = server.foreign_objects()
    assert during - before and others.complaints() == []
    del server.bridges["pw-nic0"]
    server.switch_follows()
    assert during - server.foreign_objects(), f"{made} went with the bridge"


def _lease(generation: int, expires: float | None = 1.0, phase: str = "staged") -> LeaseState:
    return LeaseState(
        phase=phase, generation=generation, expires_unix=expires,
    )  # fmt: skip


def test_a_lease_that_outlives_its_time_is_found() -> None:
    leases = Leases()
    leases.granted(1, 30.0, 100.0, sure=True)
    assert leases.late(_lease(1), 130.0 + LATE_SECONDS) == ""
    assert "is in force 36 s after its lease of 30 s" in leases.late(_lease(1), 166.0)
    assert leases.late(_lease(1, None, "committed"), 1e6) == "", "it is kept for good"
    assert leases.late(_lease(0, None, "idle"), 1e6) == ""
    leases.agent_starts(150.0)
    assert leases.late(_lease(1), 166.0) == "", "a start may count anew, but no longer"
    assert leases.late(_lease(1), 200.0) != ""


def test_a_lease_that_ends_before_its_time_is_found() -> None:
    leases, idle = Leases(), _lease(0, None, "idle")
    leases.granted(1, 30.0, 100.0, sure=True)
    assert leases.early(_lease(1), idle, 110.0) == "the lease of generation 1 ended 20 s too early"
    assert leases.early(_lease(1), _lease(1), 110.0) == ""
    assert leases.early(_lease(1), idle, 129.5) == ""
    leases.granted(1, 15.0, 105.0, sure=False)
    assert leases.early(_lease(1), idle, 121.0) == "", "it may know of the shorter one alone"
    leases.reboot(10.0)
    assert leases.early(_lease(1), idle, 11.0) == ""


def test_a_destroy_that_was_done_leaves_one_possibility() -> None:
    decisions = Decisions()
    decisions.commit(3, "done", for_good=True)
    decisions.destroy("done")
    assert decisions.possible == {0}
    decisions.forget()
    assert decisions.possible == {0, 3}, "an older copy of the agent's memory may count"


def test_a_refused_commit_counts_only_where_the_agent_ended_before_its_disk_worked() -> None:
    decisions = Decisions()
    decisions.commit(3, "refused", for_good=True)
    decisions.agent_starts()
    assert decisions.possible == {0}
    decisions.may_be_on_disk(3)
    decisions.disk_works()
    decisions.agent_starts()
    assert decisions.possible == {0}
    decisions.may_be_on_disk(3)
    decisions.agent_starts()
    assert decisions.possible == {0, 3}
