"""A real NIC that is away while its server is undone gets back what it held; a lost state, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import ApplyReport
from placewire.agent.drivers.server import Server
from placewire.agent.keep.keeper import Keeper
from placewire.agent.store import COPY_FILE, STATE_FILE, DiskStore
from placewire.agent.wiring import server_facts, way_of
from tests.agent import keeping
from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest, server_under_test
from tests.agent.states import desired_state

pytestmark = pytest.mark.network


@pytest.fixture
def server() -> Iterator[ServerUnderTest]:
    with server_under_test() as made:
        made.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0")
        yield made


def take_away(server: ServerUnderTest, how: str) -> None:
    if how == "moved":
        server.sh(f"ip link set nic0 netns {server.peer} name away0")
    elif how == "renamed":
        server.sh("ip link set nic0 down; ip link set nic0 name away0; ip link set away0 up")
    else:
        server.sh("ip link del nic0")


def bring_back(server: ServerUnderTest, how: str, mac: str) -> None:
    """As an operator does it who knows nothing of addresses: the NIC is bare, and has its MAC."""
    if how == "moved":
        server.sh(f"ip link set away0 netns {server.namespace} name nic0", peer=True)
        server.sh("ip link set nic0 up")
    elif how == "renamed":
        server.sh("ip link set away0 down; ip link set away0 name nic0; ip link set nic0 up")
    else:
        server.plug_in("nic0")
        server.sh(f"ip link set nic0 address {mac}")


def shown(server: ServerUnderTest) -> dict[str, str]:
    """What must be as before; interfaces made anew have other numbers."""
    snapshot = server.snapshot()
    addresses = [line.split("link-netnsid")[0] for line in snapshot["addresses"].splitlines()
                 if line.strip().startswith("inet")]  # fmt: skip
    return {
        "addresses": "\n".join(sorted(addresses)),
        "routes": "\n".join(sorted(snapshot["routes"].splitlines())),
        **{name: snapshot[name] for name in ("rules", "switch", "qos", "sysctls")},
    }


def tick(config: AgentConfig) -> ApplyReport | None:
    """What a daemon does that starts while nothing is in force."""
    return keeping.keeper(config).tick()


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("moved", "destroyed"),
        ("renamed", "lease over"),
        ("made anew", "lease over"),
        pytest.param("moved", "lease over", marks=pytest.mark.thorough),
        pytest.param("renamed", "destroyed", marks=pytest.mark.thorough),
        pytest.param("made anew", "destroyed", marks=pytest.mark.thorough),
    ],
)
def test_a_nic_that_is_away_at_the_undo_gets_all_back(
    server: ServerUnderTest, how: str, end: str
) -> None:
    before = shown(server)
    mac = server.sh("cat /sys/class/net/nic0/address").strip()
    lease_seconds = 60.0 if end == "destroyed" else 0.0
    assert server.inside(keeping.stage, server.config, desired_state(1), lease_seconds).succeeded
    if end == "destroyed":
        server.inside(keeping.commit, server.config, 1)
    take_away(server, how)
    undo = keeping.destroy if end == "destroyed" else keeping.resume
    report = server.inside(undo, server.config)
    assert not report.succeeded, "an undo is not done while something is owed"
    assert any("nic0" in r.where and "10.7.0.1/24" in r.what for r in report.refusals)
    lease = server.inside(keeping.observe, server.config).lease
    assert lease.is_idle and "nic0" in lease.owed[0]

    bring_back(server, how, mac)
    server.inside(tick, server.config)
    assert shown(server) == before
    assert not server.inside(keeping.observe, server.config).lease.owed
    assert server.inside(keeping.destroy, server.config).succeeded


def test_a_nic_with_another_mac_is_not_the_one(server: ServerUnderTest) -> None:
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    take_away(server, "made anew")
    server.inside(keeping.restore, server.config, 1)
    bring_back(server, "made anew", "02:00:00:00:00:77")
    server.inside(tick, server.config)
    assert "10.7.0.1" not in server.sh("ip address show nic0")
    assert server.inside(keeping.observe, server.config).lease.owed
    (said,) = server.inside(give_up, server.config, "nic0")
    assert "10.7.0.1/24" in said
    assert server.inside(keeping.destroy, server.config).succeeded


IN_THE_WAY = {
    "an interface of somebody's port": (
        "ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock add-br theirs -- set bridge theirs "
        f"datapath_type={DATAPATH} -- add-bond theirs bond0 nic0 mgmt",
        "ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock del-br theirs",
        "it is a port of theirs",
    ),
    "its address on the loopback": (
        "ip address add 10.7.0.1/32 dev lo", "ip address del 10.7.0.1/32 dev lo",
        "10.7.0.1/32 is on lo",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_debt_waits_while_something_is_in_the_way(server: ServerUnderTest, what: str) -> None:
    make, remove, told = IN_THE_WAY[what]
    before = shown(server)
    mac = server.sh("cat /sys/class/net/nic0/address").strip()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    take_away(server, "made anew")
    server.inside(keeping.restore, server.config, 1)
    bring_back(server, "made anew", mac)
    server.sh(make)
    server.inside(tick, server.config)
    assert "10.7.0.1" not in server.sh("ip address show nic0")
    observation = server.inside(keeping.observe, server.config)
    assert observation.lease.owed
    assert any("10.7.0.1/24" in p and told in p for p in observation.state.problems)
    server.sh(remove)
    server.inside(tick, server.config)
    after = shown(server)
    assert not server.inside(keeping.observe, server.config).lease.owed
    assert after == before


def give_up(config: AgentConfig, nic: str) -> tuple[str, ...]:
    return keeping.keeper(config).give_up(nic)


@pytest.mark.parametrize("lost", ["lost", "cut"])
def test_a_lost_state_is_taken_back_from_the_marks(server: ServerUnderTest, lost: str) -> None:
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    for name in (STATE_FILE, COPY_FILE):
        path = Path(server.config.state_dir) / name
        if lost == "lost":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:100])
    if lost == "lost":
        (problem,) = server.inside(keeping.observe, server.config).state.problems
        assert "pw-nic0" in problem and "--from-marks" in problem
        during = server.snapshot()
        refused = server.inside(keeping.destroy, server.config)
        assert not refused.succeeded and "--from-marks" in refused.refusals[0].remedy
        assert server.snapshot() == during
    assert server.inside(restore_from_marks_as_the_command_does, server.config) == 0
    assert server.snapshot() == before


def restore_from_marks_as_the_command_does(config: AgentConfig) -> int:
    from placewire.agent import offline  # noqa: PLC0415  A child process of the test.

    return offline.restore_from_marks(config)


def test_an_undo_on_a_full_disk_is_told_and_done_later(server: ServerUnderTest) -> None:
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    report = server.inside(destroy_on_a_full_disk, server.config)
    assert not report.succeeded and "No space left" in report.refusals[0].what
    assert server.snapshot() == before, "a full disk keeps nothing from being undone"


def destroy_on_a_full_disk(config: AgentConfig) -> ApplyReport:
    class Full(DiskStore):
        def save(self, _: Any) -> None:
            raise OSError(28, "No space left on device")

    server = Server(config)
    full = Keeper(
        server, Full(Path(config.state_dir)), server_facts(config, server), way_of(config)
    )
    return full.destroy(keeping.PLAN)


@pytest.mark.parametrize("end", ["lease over", "NIC away"])
def test_an_address_that_somebody_has_set_again_otherwise_keeps_nothing_from_being_undone(
    server: ServerUnderTest, end: str
) -> None:
    """By hand it has no broadcast address, and the kernel takes no second one."""
    mac = server.sh("cat /sys/class/net/nic0/address").strip()
    assert server.inside(keeping.stage, server.config, desired_state(1), 0.0).succeeded
    if end == "NIC away":
        take_away(server, "made anew")
        assert not server.inside(keeping.resume, server.config).succeeded
        bring_back(server, "made anew", mac)
    server.sh("ip address add 10.7.0.1/24 dev nic0")
    server.inside(tick if end == "NIC away" else keeping.resume, server.config)
    lease = server.inside(keeping.observe, server.config).lease
    assert lease.is_idle and not lease.owed
    assert "inet 10.7.0.1/24 scope global nic0" in server.sh("ip address show nic0"), "theirs"
    assert "172.16.0.0/16 via 10.7.0.2 dev nic0" in server.sh("ip route"), "and the rest is back"
