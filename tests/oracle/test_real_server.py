"""On a real server, the oracle tells each change of somebody's, and nothing once it is undone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from placewire.oracle.differences import differences
from placewire.oracle.namespace import take_in
from placewire.oracle.snapshot import UnreadableError
from tests.agent.server_under_test import ServerUnderTest, server_under_test

pytestmark = pytest.mark.network

_SWITCH = "ovs-vsctl --timeout=10 --db=unix:$OVS_RUNDIR/db.sock"
_FLOWS = "unix:$OVS_RUNDIR/br0.mgmt"
# What is done, how it is undone, and what the first sentence begins with and has in it.
CHANGES = (
    ("ip address add 10.66.0.1/24 dev nic0", "ip address del 10.66.0.1/24 dev nic0",
     "address nic0 10.66.0.1/24: was not there"),
    ("ip route add 10.66.0.0/16 via 10.7.0.254 metric 7", "ip route del 10.66.0.0/16 metric 7",
     "route IPv4 table main unicast 10.66.0.0/16 dev nic0 metric 7: was not there"),
    ("ip route add 10.66.0.0/16 dev nic0 table 8007", "ip route flush table 8007",
     "route IPv4 table 8007 unicast 10.66.0.0/16 dev nic0: was not there"),
    ("ip rule add priority 18007 from 10.66.0.0/16 table 100", "ip rule del priority 18007",
     "rule IPv4 priority 18007: was not there"),
    ("ip link set nic1 mtu 1400", "ip link set nic1 mtu 1500", "link nic1: MTU was 1500, is 1400"),
    ("ip link set nic1 promisc on", "ip link set nic1 promisc off", "link nic1: flags was "),
    ("ip link property add dev nic1 altname other", "ip link property del dev nic1 altname other",
     "link nic1: alternative names was not set, is other"),
    ("sysctl -qw net.ipv4.conf.nic0.arp_ignore=2", "sysctl -qw net.ipv4.conf.nic0.arp_ignore=0",
     "sysctl net/ipv4/conf/nic0/arp_ignore: was 0, is 2"),
    ("ip neighbour add 10.7.0.9 lladdr 02:00:00:00:00:09 dev nic0 nud permanent",
     "ip neighbour del 10.7.0.9 dev nic0", "permanent neighbour nic0 10.7.0.9: was not there"),
    ("tc class change dev nic0 parent 1: classid 1:3 htb rate 1mbit ceil 1mbit",
     "tc class change dev nic0 parent 1: classid 1:3 htb rate 2mbit ceil 2mbit",
     "class nic0 htb 1:3: was "),
    ("tc filter add dev nic0 parent 1: protocol ip pref 10 u32 match ip dst 10.66.0.3/32 "
     "flowid 1:3", "tc filter del dev nic0 parent 1: protocol ip pref 10",
     "filter nic0 parent 1: filter protocol ip pref 10 u32 "),
    ("tc filter add dev nic0 parent 1:3 protocol ip pref 11 u32 match ip dst 10.66.0.3/32 "
     "flowid 1:4", "tc filter del dev nic0 parent 1:3 protocol ip pref 11",
     "filter nic0 parent 1:3 filter protocol ip pref 11 u32 "),
    ("tc qdisc add dev nic1 root handle 5: htb", "tc qdisc del dev nic1 root",
     "qdisc nic1 root: "),
    (f"{_SWITCH} add-port br0 op0 -- set interface op0 type=internal",
     f"{_SWITCH} del-port op0", "bridge br0: ports was "),
    (f"{_SWITCH} set port nic2 tag=5", f"{_SWITCH} clear port nic2 tag",
     "port nic2: tag was not set, is 5"),
    (f"{_SWITCH} --id=@q create queue other_config:max-rate=7", f"{_SWITCH} --all destroy queue",
     "queue of no QoS, 1: was not there"),
    (f"ovs-ofctl add-flow {_FLOWS} cookie=7,priority=9,ip,nw_dst=10.66.0.2,actions=drop",
     f"ovs-ofctl del-flows {_FLOWS} cookie=7/-1",
     "flow br0 priority=9,ip,nw_dst=10.66.0.2: was not there"),
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ServerUnderTest]:
    with server_under_test() as made:
        made.plug_in("nic2")
        made.sh(f"{_SWITCH} add-br br0 -- set bridge br0 datapath_type=netdev")
        made.sh(f"{_SWITCH} add-port br0 nic2; ip link set br0 up")
        made.sh("tc qdisc add dev nic0 root handle 1: htb")
        made.sh("tc class add dev nic0 parent 1: classid 1:3 htb rate 2mbit ceil 2mbit")
        yield made


def taken(server: ServerUnderTest) -> dict[str, Any]:
    return take_in(server.namespace, str(server.directory))


def test_a_server_that_nobody_touches_does_not_differ(server: ServerUnderTest) -> None:
    first = taken(server)
    server.sh("ping -c 3 -i 0.1 10.7.0.2 >/dev/null; ip neighbour flush all")
    assert differences(first, taken(server)) == []
    assert {kind for kind, found in first["facts"].items() if found} >= {
        "link", "address", "route", "rule", "sysctl", "qdisc", "class", "bridge", "port",
        "interface", "flow",
    }  # fmt: skip


@pytest.mark.parametrize(("change", "undo", "told"), CHANGES, ids=[c[2][:40] for c in CHANGES])
def test_each_change_is_told_until_it_is_undone(
    server: ServerUnderTest, change: str, undo: str, told: str
) -> None:
    before = taken(server)
    server.sh(change)
    try:
        found = differences(before, taken(server))
        assert any(line.startswith(told) for line in found), found
    finally:
        server.sh(undo)
    assert differences(before, taken(server)) == []


def test_a_switch_that_does_not_run_is_no_gap(server: ServerUnderTest) -> None:
    with pytest.raises(UnreadableError, match=r"ovs-vsctl.*no_such"):
        take_in(server.namespace, "/no_such")
