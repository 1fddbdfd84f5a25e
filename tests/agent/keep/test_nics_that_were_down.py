"""A NIC that was down before it was taken over is set down again, unless others use it by now."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.agent.offline import _lease
from tests.agent import keeping
from tests.agent.datapath import DATAPATH
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import Link, MemoryServer, mac
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

PLAN = "test-plan"


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    made = MemoryAgent(tmp_path)
    made.server.set_up("nic0", False)
    made.server.links["early"] = Link(mac("early"), above="nic0")
    return made


def put_vlan(server: MemoryServer) -> None:
    server.links["vlan7"] = Link(mac("vlan7"), above="nic0")


def put_address(server: MemoryServer) -> None:
    server.links["nic0"].addresses.append("10.99.0.7/24")
    server.links["nic0"].theirs.add("10.99.0.7/24")


THINGS: dict[str, Callable[[MemoryServer], object]] = {
    "interface vlan7": put_vlan,
    "address 10.99.0.7/24": put_address,
    "route 10.60.0.0/16 dev nic0": lambda s: s.their_routes.append("10.60.0.0/16 dev nic0"),
    "neighbour 10.7.0.9": lambda s: s.links["nic0"].neighbours.append("10.7.0.9"),
}


def undo(agent: MemoryAgent, how: str) -> bool:
    if how == "destroyed":
        agent.keeper.commit(1, None)
        return agent.keeper.destroy(PLAN).succeeded
    if how == "lease over":
        agent.wait(40)
        return agent.keeper.lease.is_idle
    report = agent.keeper.stage(desired_state(2, nics=("nic1",)), 60)
    return report.succeeded


each_way = pytest.mark.parametrize("how", ["destroyed", "lease over", "a smaller plan"])


@each_way
def test_it_is_set_down_where_nobody_has_put_anything_on_it_since(
    agent: MemoryAgent, how: str
) -> None:
    assert agent.keeper.stage(desired_state(1), 30).succeeded and agent.server.links["nic0"].up
    assert undo(agent, how)
    assert not agent.server.links["nic0"].up and agent.keeper.lease.detail == ""


@each_way
@pytest.mark.parametrize("thing", THINGS)
def test_it_stays_up_beneath_what_came_since_and_that_is_told(
    agent: MemoryAgent, how: str, thing: str
) -> None:
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    THINGS[thing](agent.server)
    theirs = agent.server.foreign_objects()
    assert undo(agent, how)
    assert agent.server.links["nic0"].up
    assert theirs <= agent.server.foreign_objects() and agent.network.harmed == []
    said = agent.keeper.lease.detail
    assert re.search(r"NIC nic0 was left up on 2023-11-14 22:1\d UTC", said), "by the clock then"
    assert "early" not in said
    assert f"{thing} had come since" in said
    lines = (agent.directory / "audit.jsonl").read_text().splitlines()
    (noted,) = [e for e in map(json.loads, lines) if e["event"] == "stays up"]
    assert noted["detail"] == said
    assert f"({said})" in _lease(agent.keeper.lease), "`agent status` says so"


@pytest.mark.network
@pytest.mark.parametrize("since", ["nothing", "an address", "an interface"])
def test_a_real_nic_that_was_down(server: ServerUnderTest, since: str) -> None:
    """The interface `early` was made on it before."""
    server.sh("ip link set nic0 down")
    server.sh("ip link add early type vxlan id 6 dev nic0 dstport 4789")
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    if since == "an address":
        server.sh("ip address add 10.99.0.7/24 dev nic0")
    elif since == "an interface":
        server.sh("ip link add later type vxlan id 7 dev nic0 dstport 4789; ip link set later up")
    assert server.inside(keeping.restore, server.config, 1).succeeded
    lease = server.inside(keeping.observe, server.config).lease
    up = bool(int(server.sh("cat /sys/class/net/nic0/flags"), 16) & 1)
    assert up == (since != "nothing") and bool(lease.detail) == up
    if since == "nothing":
        assert server.snapshot() == before
    elif since == "an interface":
        assert "interface later" in lease.detail and "early" not in lease.detail
    else:
        assert "address 10.99.0.7/24" in lease.detail
        assert "10.99.0.0/24 dev nic0" in server.sh("ip route show")


@pytest.mark.network
@pytest.mark.skipif(DATAPATH != "netdev", reason="no port of the kernel datapath carries a macvlan")
def test_a_real_nic_that_was_down_stays_up_beneath_a_container_s_macvlan(
    server: ServerUnderTest,
) -> None:
    server.sh("ip link set nic0 down")
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.sh(f"ip link add mv0 link nic0 type macvlan; ip link set mv0 netns {server.peer}")
    server.sh("ip link set mv0 up", peer=True)
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert int(server.sh("cat /sys/class/net/nic0/flags"), 16) & 1
    told = server.inside(keeping.observe, server.config).lease.detail
    assert "in another network namespace had come since" in told
