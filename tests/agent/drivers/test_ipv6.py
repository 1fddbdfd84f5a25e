"""IPv6 beside a plan: a NIC with routes of it is refused, and our bridges have none."""

from __future__ import annotations

import pytest

from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest, start_vswitchd, wait_for
from tests.agent.states import desired_state

pytestmark = pytest.mark.network

_ON = "for n in all default nic0 nic1; do sysctl -qw net.ipv6.conf.$n.disable_ipv6=0; done"
_V6_OF_BRIDGE = "cat /proc/sys/net/ipv6/conf/pw-nic0/disable_ipv6; ip -6 address show dev pw-nic0"


@pytest.fixture
def server_with_v6(server: ServerUnderTest) -> ServerUnderTest:
    server.sh(_ON)
    return server


def test_a_nic_with_ipv6_routes_is_refused_with_them(server_with_v6: ServerUnderTest) -> None:
    server = server_with_v6
    server.sh("ip -6 route add 2001:db8::/32 via fe80::1 dev nic0; "
              "ip -6 route add default via fe80::1 dev nic0 proto ra; "
              "for n in $(seq 60); do ip -6 route add 2001:db9:$n::/48 dev nic1; done"
              )  # fmt: skip
    before = server.sh("ip -6 route")
    report = server.inside(keeping.stage, server.config, desired_state(1))
    (of_nic0,) = [r for r in report.refusals if r.where == "NIC nic0"]
    assert "2001:db8::/32 via fe80::1 dev nic0" in of_nic0.what
    assert sum(r.where == "NIC nic1" for r in report.refusals) == 50
    server.sh(of_nic0.remedy.partition("(")[2].rpartition(")")[0])
    assert "2001:db8::/32" in before and "2001:db8::/32" not in server.sh("ip -6 route")
    report = server.inside(keeping.stage, server.config, desired_state(1, nics=("nic0",)))
    assert report.succeeded, "its link-local address and a router's advertisement do not matter"


def test_a_nic_that_is_down_with_what_an_undo_could_not_give_back_is_refused(
    server_with_v6: ServerUnderTest,
) -> None:
    """The kernel drops both when the NIC is set down again."""
    server = server_with_v6
    server.sh("ip address flush dev nic0; ip link set nic0 down; "
              "ip -6 address add fe80::77/64 dev nic0; "
              "ip -6 neigh add fe80::9 lladdr 02:00:00:00:00:09 dev nic0 nud permanent"
              )  # fmt: skip
    desired = desired_state(1, nics=("nic0",))
    told = [r.sentence for r in server.inside(keeping.stage, server.config, desired).refusals]
    assert ["fe80::77/64" in told[0], "fe80::9" in told[1], len(told)] == [True, True, 2], told
    server.sh("ip link set nic0 up")
    assert server.inside(keeping.stage, server.config, desired).succeeded
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert "fe80::77/64" in server.sh("ip -6 address show dev nic0")
    assert "fe80::9 " in server.sh("ip -6 neigh show dev nic0 nud permanent")


def test_a_bridge_has_no_ipv6_unless_somebody_switches_it_on(
    server_with_v6: ServerUnderTest,
) -> None:
    server = server_with_v6
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    assert server.sh(_V6_OF_BRIDGE).split() == ["1"]
    server.sh("sysctl -qw net.ipv6.conf.pw-nic0.disable_ipv6=0; "
              "ip address add fd00::7/64 dev pw-nic0 nodad; ip link set nic0 down")  # fmt: skip
    server.inside(keeping.resume, server.config)
    assert "fd00::7" in server.sh(_V6_OF_BRIDGE), "what others have there stays"
    pid = f"$(cat {server.directory}/vswitchd.pid)"
    server.sh(f"ovs-appctl -t {server.directory}/ovs-vswitchd.{pid}.ctl exit --cleanup")
    wait_for(lambda: "pw-nic0" not in server.sh("ip -br link"), "its interfaces to go")
    start_vswitchd(server)
    wait_for(lambda: "pw-nic0" in server.sh("ip -br link"), "its interfaces to be made anew")
    server.inside(keeping.resume, server.config)
    assert server.sh(_V6_OF_BRIDGE).split() == ["1"]
