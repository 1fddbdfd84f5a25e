"""A NIC's IPv6 addresses and routes move to its bridge and come back; nothing else of IPv6 comes
onto a bridge by itself."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import time
from typing import Any

import pytest

from placewire.agent.drivers.kernel_events import KernelEvents
from placewire.oracle.differences import differences
from placewire.oracle.namespace import take_in
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest, start_vswitchd, wait_for
from tests.agent.states import desired_state

pytestmark = pytest.mark.network

_ON = "for n in all default nic0 nic1; do sysctl -qw net.ipv6.conf.$n.disable_ipv6=0; done"
_V6_OF_BRIDGE = "cat /proc/sys/net/ipv6/conf/pw-nic0/disable_ipv6; ip -6 address show dev pw-nic0"
_OF_NIC0 = desired_state(1, nics=("nic0",))
# Beside what give_ipv6 gives: each flag, an address without the kernel's route and the route that a
# program made in its stead, gateways of a link and of a table, and a gateway of IPv6 for IPv4.
_MORE = """\
ip address add fd07::11/64 dev nic0 nodad preferred_lft 0
ip address add fd08::1/64 dev nic0 noprefixroute metric 70
ip address add fec0::1/64 dev nic0
ip -6 route add fd08::/64 dev nic0 proto kernel metric 256
ip -6 route add default via fe80::9 dev nic0 metric 50 mtu 1400 pref high
ip -6 route add 2001:db9::/32 via fd07::9 dev nic0 table 61 proto static
ip route add 10.55.0.0/16 via inet6 fd07::2 dev nic0
"""


@pytest.fixture
def server_with_v6(server: ServerUnderTest) -> ServerUnderTest:
    with server.addresses_at_once():
        server.sh(_ON)
        server.sh(_ON, peer=True)
        server.give_ipv6()
        server.sh(_MORE)
        server.sh("ip address add 2001:db8::5/128 dev lo", peer=True)
    return server


def _snapshot(server: ServerUnderTest) -> dict[str, Any]:
    return take_in(server.namespace, str(server.directory))


def _stage(server: ServerUnderTest) -> None:
    report = server.inside(keeping.stage, server.config, _OF_NIC0)
    assert report.succeeded, report.refusals


def _is_reached(server: ServerUnderTest) -> bool:
    """Whether IPv6 passes both ways, and by the gateway."""
    ways = [("fd07::2", "fd07::1"), ("2001:db8::5", "")]
    out = [server.inside(keeping.reaches, *way) for way in ways]
    return all([*out, server.inside(keeping.reaches, "fd07::1", peer=True)])


def _wait_until_told(server: ServerUnderTest, interface: str) -> None:
    """Until the neighbour has this MAC address. Nobody sends to it or from it meanwhile."""
    mac = server.sh(f"cat /sys/class/net/{interface}/address").strip()
    known = "ip -6 neigh show fd07::1 dev nic0"
    wait_for(lambda: mac in server.sh(known, peer=True), f"the neighbour to know {interface}")


def _refused(server: ServerUnderTest) -> list[str]:
    report = server.inside(keeping.stage, server.config, _OF_NIC0)
    return [refusal.sentence for refusal in report.refusals]


def _make_interfaces_anew(server: ServerUnderTest) -> None:
    """Ends ovs-vswitchd and starts it, as a reboot does."""
    pid = f"$(cat {server.directory}/vswitchd.pid)"
    server.sh(f"ovs-appctl -t {server.directory}/ovs-vswitchd.{pid}.ctl exit --cleanup")
    wait_for(lambda: "pw-nic0" not in server.sh("ip -br link"), "its interfaces to go")
    # As it ends, it removes the file that the next one writes.
    server.processes[-1].wait(30)
    start_vswitchd(server)
    wait_for(lambda: "pw-nic0" in server.sh("ip -br link"), "its interfaces to be made anew")


def test_addresses_and_routes_move_to_the_bridge_and_come_back_as_they_were(
    server_with_v6: ServerUnderTest,
) -> None:
    server = server_with_v6
    before = _snapshot(server)
    order = server.sh("ip -6 -br address show dev nic0").split()[2:-1]
    assert _is_reached(server)
    _stage(server)
    moved = server.sh("ip address show dev pw-nic0; ip route show table all dev pw-nic0; "
                      "ip -6 route show table all dev pw-nic0")  # fmt: skip
    for one in ("fd07::1/64", "fd07::11/64", "fd08::1/64 metric 70", "fec0::1/64",
                "2001:db9::/32 via fd07::9 table 61", "default via fe80::9",
                "10.55.0.0/16 via inet6 fd07::2"):  # fmt: skip
        assert one in moved
    assert "fd0" not in server.sh("ip -6 address show dev nic0; ip -6 route show dev nic0")
    assert "tentative" not in moved
    _wait_until_told(server, "pw-nic0")
    assert _is_reached(server)
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert "tentative" not in server.sh("ip -6 address show dev nic0"), "it works at once"
    _wait_until_told(server, "nic0")
    assert _is_reached(server)
    assert list(differences(before, _snapshot(server))) == []
    assert server.sh("ip -6 -br address show dev nic0").split()[2:-1] == order


@pytest.mark.parametrize(
    ("route", "then_on"),
    [
        # NetworkManager makes it in the kernel's stead, with a metric of its own.
        ("fe80::/64 proto kernel metric 1025", "nic0"),
        # Once the NIC is a port, only the bridge leads to neighbours.
        ("fe80::/64 proto static metric 70", "pw-nic0"),
        ("fe80::77 proto static metric 1024", "pw-nic0"),
    ],
)
def test_a_link_local_route_moves_unless_it_is_in_the_place_of_the_kernels(
    server_with_v6: ServerUnderTest, route: str, then_on: str
) -> None:
    server = server_with_v6
    server.sh(f"ip -6 route add {route} dev nic0")
    before = _snapshot(server)
    _stage(server)
    there = [on for on in ("nic0", "pw-nic0") if route in server.sh(f"ip -6 route show dev {on}")]
    assert there == [then_on]
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert list(differences(before, _snapshot(server))) == []


def test_what_a_switch_that_starts_lost_is_put_back(server_with_v6: ServerUnderTest) -> None:
    """The interface of the bridge is made anew, without IPv6."""
    server = server_with_v6
    before = _snapshot(server)
    _stage(server)
    server.inside(keeping.commit, server.config, 1)
    applied = _snapshot(server)
    _make_interfaces_anew(server)
    assert server.inside(keeping.resume, server.config).succeeded
    assert _is_reached(server) and list(differences(applied, _snapshot(server))) == []
    assert server.inside(keeping.destroy, server.config).succeeded
    assert list(differences(before, _snapshot(server))) == []


@pytest.mark.parametrize(
    "meddling",
    [
        "ip address del fd07::1/64 dev pw-nic0",
        "sysctl -qw net.ipv6.conf.pw-nic0.disable_ipv6=1",
        "ip -6 route flush dev pw-nic0 table 61; ip address add fd07::1/64 dev nic0 nodad",
    ],
)
def test_what_somebody_changes_of_it_is_put_back(
    server_with_v6: ServerUnderTest, meddling: str
) -> None:
    server = server_with_v6
    _stage(server)
    server.inside(keeping.commit, server.config, 1)
    applied = _snapshot(server)
    server.sh(meddling)
    assert differences(applied, _snapshot(server))
    assert server.inside(keeping.resume, server.config).succeeded
    # Whoever sets an address to the NIC says no more of it than that it is there.
    assert [d for d in differences(applied, _snapshot(server)) if "nodad" not in d] == []


@pytest.mark.parametrize(
    "change",
    ["ip address add fd0b::1/64 dev nic0 nodad", "ip -6 route add 2001:dbd::/32 dev nic0"],
)
def test_the_kernel_tells_of_changes(server_with_v6: ServerUnderTest, change: str) -> None:
    assert server_with_v6.inside(_notices, change)
    of_another = change.replace("nic0", "nic1").replace("2001:dbd", "2001:dbe")
    assert not server_with_v6.inside(_notices, of_another)


def _notices(change: str) -> bool:
    async def watching() -> bool:
        noticed = asyncio.Event()
        events = KernelEvents(noticed.set)
        events.open(frozenset({"nic0"}))
        subprocess.run(change.split(), check=True)
        try:
            await asyncio.wait_for(noticed.wait(), 1)
        except TimeoutError:
            return False
        finally:
            events.close()
        return True

    return asyncio.run(watching())


def test_a_lost_state_is_taken_back_from_the_marks(server_with_v6: ServerUnderTest) -> None:
    server = server_with_v6
    before = _snapshot(server)
    _stage(server)
    server.sh(f"rm -r {server.config.state_dir}")
    assert server.inside(keeping.restore_from_marks, server.config).succeeded
    assert list(differences(before, _snapshot(server))) == []


def test_what_routers_advertise_is_not_moved_but_refused(
    server_with_v6: ServerUnderTest,
) -> None:
    server = server_with_v6
    server.sh("sysctl -qw net.ipv6.conf.nic0.accept_ra=2")
    server.inside(_advertise, peer=True)
    wait_for(lambda: "2001:dba:" in server.sh("ip -6 address show dev nic0"), "its address")
    told = _refused(server)
    assert len(told) == 3, told
    for one in ("got 2001:dba:", "the route '2001:dba::/64 dev nic0", "the route '::/0 via fe80:"):
        assert sum(one in line and "router's advertisement" in line for line in told) == 1, told
    for line in told:
        server.sh(f"sysctl {line.rpartition('(sysctl')[2].partition('; where')[0]}", check=False)
    assert _refused(server) == [], "each remedy helps"


def test_a_bridge_takes_nothing_of_advertisements(server_with_v6: ServerUnderTest) -> None:
    server = server_with_v6
    _stage(server)
    state = "ip -6 -br address show dev pw-nic0; ip -6 route show dev pw-nic0"
    before = server.sh(state)
    server.inside(_advertise, peer=True)
    time.sleep(0.5)
    assert server.sh(state) == before


def _advertise() -> None:
    """Sends a router's advertisement of a subnet from nic0 (RFC 4861, sections 4.2 and 4.6.2)."""
    router = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    on_link_and_autonomous, lasts_seconds = 0xC0, 3600
    prefix = socket.inet_pton(socket.AF_INET6, "2001:dba::")
    subnet = struct.pack("!BBBBIII", 3, 4, 64, on_link_and_autonomous, lasts_seconds, 1800, 0)
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sending:
        sending.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        index = socket.if_nametoindex("nic0")
        sending.sendto(router + subnet + prefix, ("ff02::1", 0, 0, index))


def test_an_address_that_lasts_for_a_time_only_is_refused(
    server_with_v6: ServerUnderTest,
) -> None:
    server_with_v6.sh("ip address add fd0a::1/64 dev nic0 valid_lft 3600 preferred_lft 60; "
                      "ip -6 route add 2001:dbb::/32 dev nic0 expires 600; "
                      "ip -6 route add 2001:dbc::/32 dev nic0 nexthop via fd07::2 dev nic0 "
                      "nexthop via fd07::3 dev nic0")  # fmt: skip
    told = "\n".join(_refused(server_with_v6))
    assert "got fd0a::1/64 for a limited time" in told
    assert "'2001:dbb::/32 dev nic0 metric 1024 expires 0 pref medium', which cannot be" in told
    assert "part of the multipath route '2001:dbc::/32" in told


def test_a_nic_that_is_down_with_what_an_undo_could_not_give_back_is_refused(
    server_with_v6: ServerUnderTest,
) -> None:
    """The kernel drops them when the NIC is set down again."""
    server = server_with_v6
    server.sh("ip address flush dev nic0; ip link set nic0 down; "
              "ip -6 address add fd00::7/64 dev nic0")  # fmt: skip
    (told,) = _refused(server)
    assert "is down and has the IPv6 address fd00::7/64" in told
    server.sh("ip address del fd00::7/64 dev nic0; ip -6 address add fe80::77/64 dev nic0; "
              "ip -6 neigh add fe80::9 lladdr 02:00:00:00:00:09 dev nic0 nud permanent"
              )  # fmt: skip
    of_address, of_neighbour = _refused(server)
    assert "fe80::77/64" in of_address and "fe80::9" in of_neighbour
    server.sh("ip link set nic0 up")
    _stage(server)
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert "fe80::77/64" in server.sh("ip -6 address show dev nic0")
    assert "fe80::9 " in server.sh("ip -6 neigh show dev nic0 nud permanent")


def test_a_bridge_has_no_ipv6_unless_its_nic_had_or_somebody_switches_it_on(
    server: ServerUnderTest,
) -> None:
    server.sh(_ON)
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    assert server.sh(_V6_OF_BRIDGE).split() == ["1"]
    server.sh("sysctl -qw net.ipv6.conf.pw-nic0.disable_ipv6=0; "
              "ip address add fd00::7/64 dev pw-nic0 nodad; ip link set nic0 down")  # fmt: skip
    server.inside(keeping.resume, server.config)
    assert "fd00::7" in server.sh(_V6_OF_BRIDGE), "what others have there stays"
    _make_interfaces_anew(server)
    server.inside(keeping.resume, server.config)
    assert server.sh(_V6_OF_BRIDGE).split() == ["1"]
