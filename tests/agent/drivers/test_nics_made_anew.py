"""A NIC of ours that is made anew, or moved away and back, carries traffic again, and others keep
what is theirs on its port. ovs-vswitchd does not open it by itself on the userspace datapath."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import ApplyReport
from placewire.agent.drivers import ports
from placewire.agent.drivers.server import Server
from placewire.agent.keep.healing import OPENS_BY_ITSELF_SECONDS
from placewire.agent.keep.keeper import Keeper
from placewire.agent.keep.memory import elapsed_seconds
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.store import DiskStore
from placewire.agent.wiring import server_facts, way_of
from tests.agent import keeping
from tests.agent.datapath import only_netdev
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

pytestmark = pytest.mark.network


def in_force(server: ServerUnderTest) -> None:
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)


def move_away_and_back(server: ServerUnderTest) -> None:
    server.sh(f"ip link set nic0 netns {server.peer} name away0")
    server.sh(f"ip link set away0 netns {server.namespace} name nic0", peer=True)
    server.sh("ip link set nic0 up")


def make_anew(server: ServerUnderTest) -> None:
    """As a driver that is loaded again makes it; its owner sets it up."""
    mac = server.sh("cat /sys/class/net/nic0/address").strip()
    server.sh("ip link del nic0")
    server.plug_in("nic0")
    server.sh(f"ip link set nic0 address {mac}")
    for host in (2, 3):
        server.sh(f"ip address add 10.7.0.{host}/24 dev nic0", peer=True)


def passing_time(config: AgentConfig, looks: int) -> list[ApplyReport | None]:
    """An agent that runs on, and looks so often, without any waiting: its clock says that enough
    time has passed each time."""
    ahead = 0.0
    server = Server(config)
    keeper = Keeper(
        server,
        DiskStore(Path(config.state_dir)),
        server_facts(config, server),
        way_of(config),
        elapsed=lambda: elapsed_seconds() + ahead,
    )
    reports = []
    for _ in range(looks):
        keeper.notice()
        ahead += OPENS_BY_ITSELF_SECONDS + 1
        reports.append(keeper.tick())
    return reports


def columns(server: ServerUnderTest) -> str:
    return "\n".join(
        server.vsctl(f"--columns={names} list {table} nic0")
        for table, names in (
            ("port", "_uuid,qos,external_ids,other_config"),
            ("interface", "_uuid,ofport,ofport_request,external_ids,type,error"),
        )
    )


@only_netdev
@pytest.mark.parametrize("lose", [make_anew, move_away_and_back])
def test_a_nic_that_was_away_carries_traffic_again(
    server: ServerUnderTest, lose: Callable[[ServerUnderTest], None]
) -> None:
    in_force(server)
    server.vsctl("set port nic0 other_config:theirs=1 -- set interface nic0 external_ids:theirs=2")
    before = columns(server)
    lose(server)
    assert not server.inside(keeping.reaches, "10.7.0.2"), "else this shows nothing"
    found = server.inside(keeping.read_back, server.config, 1)
    assert "pw-nic0" in {change.key for change in found.deviations}
    assert "ovs-vswitchd does not have NIC nic0 open" in found.problems
    server.inside(passing_time, server.config, 2)
    assert server.inside(keeping.reaches, "10.7.0.2")
    assert columns(server) == before
    found = server.inside(keeping.read_back, server.config, 1)
    assert not found.deviations and not found.problems
    later = server.inside(passing_time, server.config, 2)
    assert not any(report.changes or report.refusals for report in later if report), "once only"


def failure_to_open_anew(config: AgentConfig) -> str:
    try:
        ports.open_anew(config.ovsdb_remote, ["nic0"])
    except EffectError as error:
        return str(error)
    return ""


def test_a_port_is_not_left_closed_where_the_switch_stands_still(server: ServerUnderTest) -> None:
    in_force(server)
    pid = int((server.directory / "vswitchd.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        told = server.inside(failure_to_open_anew, server.config)
        assert "ovs-vswitchd does not take it in" in told
        assert server.vsctl("--no-wait get interface nic0 type").strip() == '""'
    finally:
        os.kill(pid, signal.SIGCONT)


@only_netdev
def test_a_nic_that_is_not_promiscuous_any_more_is_set_so_and_stays_open(
    server: ServerUnderTest,
) -> None:
    in_force(server)
    server.sh("ip link set nic0 promisc off")
    found = server.inside(keeping.read_back, server.config, 1)
    assert [change.key for change in found.deviations] == ["pw-nic0"]
    assert "does not have NIC" not in str(found.problems)
    server.inside(passing_time, server.config, 1)
    assert "PROMISC" in server.sh("ip link show nic0")
    assert not server.inside(keeping.read_back, server.config, 1).deviations
    assert server.inside(keeping.destroy, server.config).succeeded
    assert "PROMISC" not in server.sh("ip link show nic0")


@only_netdev
def test_a_nic_with_filters_of_others_is_not_opened_anew(server: ServerUnderTest) -> None:
    """Its queues would go, and their filters with these. An owner of filters is told."""
    in_force(server)
    make_anew(server)
    server.sh("tc qdisc add dev nic0 root handle 1: htb; tc filter add dev nic0 parent 1: "
              "protocol ip prio 5 u32 match ip dst 9.9.9.9 flowid 1:1")  # fmt: skip
    *_, report = server.inside(passing_time, server.config, 2)
    assert "09090909" in server.sh("tc filter show dev nic0")
    assert not report.changes, "its queues are not written, either"
    assert any("nic0" in r.what and "not ours" in r.what for r in report.refusals)
