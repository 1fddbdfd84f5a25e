"""Real Open vSwitch, tc and netlink in namespaces: what is asked for is what is read back."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.contract.entries import Bridge, Classifier, Flow, Sysctl
from placewire.agent.contract.state import Collections
from placewire.agent.drivers.openflow import parse_flows
from placewire.agent.drivers.server import Server
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.effects import EffectError, UnreadableError
from placewire.agent.reconcile.steps import EntryStep
from placewire.agent.reconcile.unmarkable import Unmarked
from tests.agent import keeping
from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest, start_vswitchd, wait_for
from tests.agent.states import desired_state, first_changes

network = pytest.mark.network


def thorough(value: Any) -> Any:
    """A case like another one, which `make test` has."""
    return pytest.param(value, marks=pytest.mark.thorough)


FOREIGN = f"""
ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock -- add-br theirs -- set bridge theirs \
  datapath_type={DATAPATH} \
  -- --id=@queue create queue other-config:max-rate=7000000 \
  -- create qos type=linux-htb other-config:max-rate=9000000 queues:1=@queue
ip rule add from 192.168.77.1 lookup 77 priority 17999
ip rule add from 192.168.77.2 lookup 77 priority 18500
ip route add 192.168.77.0/24 dev mgmt table 77
ip route add 192.168.78.0/24 dev mgmt proto static
tc qdisc add dev mgmt root tbf rate 90mbit burst 20kb latency 50ms
sysctl -qw net.ipv4.conf.mgmt.arp_notify=1
"""


@network
def test_everything_asked_for_is_read_back(server: ServerUnderTest) -> None:
    desired = desired_state()
    report = server.inside(keeping.stage, server.config, desired)
    assert report.succeeded and not report.refusals
    observed = server.inside(keeping.observe, server.config).state
    wanted = canonical(desired)
    for name in Collections.model_fields:
        assert set(getattr(observed, name)) == set(getattr(wanted, name)), name
    effective = {(q.nic, q.queue_id): q for q in observed.effective_queues}
    assert effective["nic0", 2].max_bits_per_second == 10_000_000
    assert effective["nic1", 3].min_bits_per_second == 30_000_000
    assert abs(effective["nic0", 2].burst_bytes - 15_000) < 100
    assert not observed.problems


@network
def test_neighbours_find_the_server_before_during_and_after(server: ServerUnderTest) -> None:
    """On the userspace datapath the bridge has a MAC address of its own: neighbours that know the
    NIC's learn it at once, and the NIC's again when that comes back. On the kernel datapath the
    bridge has the NIC's."""

    def known_to_peer() -> str:
        (entry,) = json.loads(server.sh("ip -j neigh show 10.7.0.1 dev nic0", peer=True))
        return str(entry["lladdr"])

    def mac(interface: str) -> str:
        return server.sh(f"cat /sys/class/net/{interface}/address").strip()

    assert server.inside(keeping.reaches, "10.7.0.1", peer=True)
    assert known_to_peer() == mac("nic0")
    server.inside(keeping.stage, server.config, desired_state())
    assert (mac("pw-nic0") == mac("nic0")) == (DATAPATH == "system")
    wait_for(lambda: known_to_peer() == mac("pw-nic0"), "the peer to be told")
    assert server.inside(keeping.reaches, "10.7.0.2")
    assert server.inside(keeping.reaches, "10.7.1.3", "10.7.1.1")
    assert server.inside(keeping.reaches, "10.7.1.1", peer=True)
    server.inside(keeping.destroy, server.config)
    wait_for(lambda: known_to_peer() == mac("nic0"), "the peer to be told")
    assert server.inside(keeping.reaches, "10.7.0.1", peer=True)


@network
def test_applied_twice_changes_nothing(server: ServerUnderTest) -> None:
    expected = first_changes(server)
    first = server.inside(keeping.stage, server.config, desired_state(1))
    assert len(first.changes) == expected
    server.inside(keeping.commit, server.config, 1)
    before = server.snapshot()
    second = server.inside(keeping.stage, server.config, desired_state(2))
    assert second.succeeded and second.changes == ()
    assert server.snapshot() == before


@network
def test_a_change_touches_only_what_differs(server: ServerUnderTest) -> None:
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    changed = desired_state(2, rates=(12_000_000, 20_000_000), nics=("nic0", "nic1"))
    fewer = tuple(flow for flow in changed.flows if flow.destination != "10.7.0.3")
    changed = changed.model_copy(update={"flows": fewer})
    previewed = server.inside(keeping.preview, server.config, changed)
    report = server.inside(keeping.stage, server.config, changed)
    assert report.succeeded and report.changes == previewed.changes
    assert sorted((c.action, c.key) for c in report.changes) == [
        ("remove", "pw-nic0 to 10.7.0.3"),
        *(("replace", f"{nic} queue {n}") for nic in ("nic0", "nic1") for n in (2, 3)),
    ]
    assert "rate 12Mbit ceil 12Mbit" in server.sh("tc class show dev nic1")


@network
def test_destroy_leaves_exactly_what_was_there(server: ServerUnderTest) -> None:
    server.sh(FOREIGN)
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.inside(keeping.commit, server.config, 1)
    during = server.snapshot()
    assert during != before
    theirs = "ip route show table 77; ip rule show table 77; tc qdisc show dev mgmt"
    assert "tbf" in server.sh(theirs) and server.sh(theirs).count("192.168.77") == 3
    report = server.inside(keeping.destroy, server.config)
    assert report.succeeded
    assert server.snapshot() == before


@network
def test_foreign_flows_and_filters_on_our_own_bridge_stay(server: ServerUnderTest) -> None:
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    management = f"unix:{server.directory}/pw-nic0.mgmt"
    server.sh(f"ovs-ofctl add-flow {management} cookie=7,priority=99,tcp,tp_dst=9,actions=drop")
    server.sh(
        "tc filter add dev nic0 parent 1: protocol ip prio 5 u32 match ip dst 9.9.9.9 flowid 1:1"
    )
    changed = desired_state(2, rates=(8_000_000, 30_000_000))
    keep = tuple(c for c in changed.classifiers if c.destination is None)
    changed = changed.model_copy(update={"classifiers": keep, "flows": changed.flows[:1]})
    assert server.inside(keeping.stage, server.config, changed).succeeded
    flows = server.sh(f"ovs-ofctl --no-stats dump-flows {management}")
    assert "tp_dst=9" in flows and "10.7.0.3" not in flows and "10.7.0.2" in flows
    filters = server.sh("tc filter show dev nic0")
    assert "09090909" in filters and "0a070002" not in filters
    assert ("pref 20480" in filters) == (DATAPATH == "netdev")


@network
def test_routes_of_a_taken_nic_move_and_come_back(server: ServerUnderTest) -> None:
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0 proto static metric 50")
    server.sh("ip route add 172.17.0.0/16 dev nic1 scope link src 10.7.1.1 table 60")
    server.sh("ip route add default via 10.7.0.3 dev nic0")
    # `ip route del broadcast ...` looks in table local, where no table is said.
    server.sh("ip route add broadcast 10.7.0.200 dev nic0 table main")
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    during = server.sh("ip route show table all")
    assert "broadcast 10.7.0.200 dev pw-nic0 scope link" in during
    assert "172.16.0.0/16 via 10.7.0.2 dev pw-nic0 proto static metric 50" in during
    assert "172.17.0.0/16 dev pw-nic1 table 60" in during
    assert "default via 10.7.0.3 dev pw-nic0" in during
    assert "dev nic0" not in during
    assert server.inside(keeping.restore, server.config, 1).succeeded
    after = server.snapshot()
    assert sorted(after.pop("routes").splitlines()) == sorted(before.pop("routes").splitlines())
    assert after == before


def refused(server: ServerUnderTest) -> list[str]:
    before = server.snapshot()
    report = server.inside(keeping.stage, server.config, desired_state())
    assert not report.succeeded and report.changes == () and server.snapshot() == before
    return [refusal.sentence for refusal in report.refusals]


@network
@pytest.mark.parametrize("by", [thorough("10.7.0.3 dev nic0"), "10.9.0.254 dev mgmt"])
def test_a_nic_with_two_routes_in_one_place_is_refused(server: ServerUnderTest, by: str) -> None:
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0 metric 5")
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.3 dev nic0 metric 5 tos 0x10")
    server.sh(f"ip route append 172.16.0.0/16 via {by} metric 5")
    told = refused(server)
    assert any("NIC nic0: has the route '172.16.0.0/16 via 10.7.0.2" in text for text in told), told
    server.sh(f"ip route del 172.16.0.0/16 via {by} metric 5")
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    assert server.inside(keeping.restore, server.config, 1).succeeded
    after = server.snapshot()
    assert sorted(after.pop("routes").splitlines()) == sorted(before.pop("routes").splitlines())
    assert after == before


@network
@pytest.mark.parametrize("group", [thorough(False), True])
def test_a_nic_of_a_nexthop_object_is_refused(server: ServerUnderTest, group: bool) -> None:
    """Also one by which no route leads yet; but one without a gateway is nobody's loss."""
    server.sh("ip nexthop add id 7 via 10.7.0.2 dev nic0")
    if group:
        server.sh("ip nexthop add id 8 dev mgmt; ip nexthop add id 9 group 7/8; "
                  "ip route add 172.16.0.0/16 nhid 9")  # fmt: skip
    told = refused(server)
    assert any("`id 7 via 10.7.0.2 dev nic0`" in t and "ip nexthop del id 7" in t for t in told)
    server.sh("ip nexthop flush; ip nexthop add id 12 dev nic0 proto zebra")
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.sh("ip nexthop add id 13 dev pw-nic0 proto zebra")
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert "id 12 dev nic0" in server.sh("ip nexthop")


@network
def test_a_nic_that_rules_of_routing_name_is_refused_unless_they_name_its_bridge_too(
    server: ServerUnderTest,
) -> None:
    """What comes in by the bridge is not of the NIC any more."""
    rules = {
        "ip rule": "priority 90 from all iif nic0 table 61",
        "ip -6 rule": "priority 91 not from fd07::/64 fwmark 0x1/0xff oif nic0 prohibit",
    }
    for command, words in rules.items():
        server.sh(f"{command} add {words}")
    server.sh("ip rule add priority 92 iif mgmt lookup 61; ip rule add priority 93 iif lo goto 100")
    told = refused(server)
    assert len(told) == len(rules)
    for (command, words), sentence in zip(rules.items(), told, strict=True):
        assert f"`{words}`" in sentence and f"({command} del {words})" in sentence
        (add,) = re.findall(rf"\(({command} add [^)]+)\)", sentence)
        server.sh(add)
    shown = server.sh("ip rule; ip -6 rule")
    assert "iif pw-nic0" in shown and "oif pw-nic0" in shown
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert server.sh("ip rule; ip -6 rule") == shown


@network
@pytest.mark.parametrize("protocol", ["bird", thorough("keepalived")])
def test_a_nic_with_a_route_that_a_program_may_withdraw_is_refused(
    server: ServerUnderTest, protocol: str
) -> None:
    """It was put back on the bridge after its program had withdrawn it, and left on the NIC."""
    server.sh(f"ip route add 172.16.0.0/24 via 10.7.0.2 dev nic0 proto {protocol}")
    (told,) = refused(server)
    assert "172.16.0.0/24 via 10.7.0.2 dev nic0" in told and "may withdraw it" in told
    server.sh("ip route change 172.16.0.0/24 via 10.7.0.2 dev nic0 proto static")
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.sh(f"ip route add 172.17.0.0/24 via 10.7.0.2 dev pw-nic0 proto {protocol}")
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded


ON_A_BRIDGE = {
    "ip neigh add proxy 10.7.0.8 dev pw-nic0": "ip neigh del proxy 10.7.0.8 dev pw-nic0",
    "ip nexthop add id 7 via 10.7.0.2 dev pw-nic0": "ip nexthop del id 7",
    "ip route add local 192.0.2.0/24 dev pw-nic0":
        "ip route del local 192.0.2.0/24 dev pw-nic0 scope 254",
    "ip route add local 192.0.2.0/24 dev pw-nic0 table 61":
        "ip route del local 192.0.2.0/24 dev pw-nic0 table 61 scope 254",
    "ip route add 198.51.100.0/24 dev pw-nic0 table 255":
        "ip route del 198.51.100.0/24 dev pw-nic0 scope 253 table 255",
}  # fmt: skip


@network
def test_what_others_put_on_a_bridge_stays_with_it_and_is_told(server: ServerUnderTest) -> None:
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    for make in ON_A_BRIDGE:
        server.sh(make)
    shown = "ip nexthop show; ip neigh show proxy; ip route show table 61; ip route show table 255"
    during = server.sh(shown)
    assert server.inside(keeping.read_back, server.config, 1).deviations == ()
    report = server.inside(keeping.restore, server.config, 1)
    assert report.changes == () and server.sh(shown) == during
    for command in ON_A_BRIDGE.values():
        assert any(f"({command})" in refusal.remedy for refusal in report.refusals), command
        server.sh(command)
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert server.snapshot() == before


@network
def test_an_undo_ends_though_somebodys_route_is_in_the_place_of_the_nics(
    server: ServerUnderTest,
) -> None:
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0 metric 5")
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.sh("ip route append 172.16.0.0/16 via 10.9.0.254 dev mgmt metric 5")
    server.inside(keeping.commit, server.config, 1)
    report = server.inside(keeping.destroy, server.config)
    assert report.succeeded, report.refusals
    shown = server.sh("ip route show 172.16.0.0/16").split("\n")
    assert [line.split(" metric")[0] for line in shown[:2]] == [
        "172.16.0.0/16 via 10.9.0.254 dev mgmt",
        "172.16.0.0/16 via 10.7.0.2 dev nic0",
    ]


METRICS = """
mtu 1400 advmss 1000 rtt 100ms rttvar 50ms window 1000 cwnd 20 ssthresh 20 reordering 4 hoplimit 3
mtu lock 1400 advmss lock 1000 rtt lock 100ms rttvar lock 50ms window lock 1000 cwnd lock 20
ssthresh lock 20 reordering lock 4 hoplimit lock 3 initcwnd lock 20 initrwnd lock 10
rto_min 200ms
rto_min 1s quickack 1 fastopen_no_cookie 1 features ecn congctl lock cubic initcwnd 10 initrwnd 5
"""


@network
def test_routes_with_any_metric_move_and_come_back(server: ServerUnderTest) -> None:
    for number, words in enumerate(METRICS.split("\n")[1:-1]):
        server.sh(f"ip route add 172.{16 + number}.0.0/16 via 10.7.0.2 dev nic0 {words}")
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    during = server.sh("ip route show")
    assert "dev pw-nic0 rto_min lock 200ms" in during and "dev nic0" not in during
    assert server.inside(keeping.read_back, server.config, 1).deviations == ()
    assert server.inside(keeping.restore, server.config, 1).succeeded
    after = server.snapshot()
    assert sorted(after.pop("routes").splitlines()) == sorted(before.pop("routes").splitlines())
    assert after == before


@network
def test_a_route_that_network_manager_made_of_the_subnet_comes_back(
    server: ServerUnderTest,
) -> None:
    server.sh("ip address del 10.7.0.1/24 dev nic0")
    server.sh("ip address add 10.7.0.1/24 broadcast 10.7.0.255 dev nic0 noprefixroute")
    server.sh("ip route add 10.7.0.0/24 dev nic0 proto kernel scope link src 10.7.0.1 metric 100")
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0 proto static metric 100")
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    assert server.inside(keeping.read_back, server.config, 1).deviations == ()
    during = server.sh("ip route show")
    assert "172.16.0.0/16 via 10.7.0.2 dev pw-nic0 proto static metric 100" in during
    assert "dev nic0" not in during
    assert server.inside(keeping.restore, server.config, 1).succeeded
    after = server.snapshot()
    assert sorted(after.pop("routes").splitlines()) == sorted(before.pop("routes").splitlines())
    assert after == before


@network
def test_an_address_that_was_deprecated_is_given_back_so(server: ServerUnderTest) -> None:
    server.sh("ip address change 10.7.0.1/24 broadcast 10.7.0.255 dev nic0 preferred_lft 0")
    before = server.snapshot()
    assert "deprecated nic0" in before["addresses"]
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert server.snapshot() == before


@network
def test_routes_that_a_program_made_as_the_kernels_come_back(server: ServerUnderTest) -> None:
    """Cilium makes its routes to other nodes so."""
    server.sh("ip route add 10.60.2.0/24 via 10.7.0.2 dev nic0 proto kernel")
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    assert "10.60.2.0/24 via 10.7.0.2 dev pw-nic0 proto kernel" in server.sh("ip route show")
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert server.snapshot() == before
    server.sh("ip route add 10.60.3.0/24 dev mgmt proto kernel src 10.7.0.1")
    (refused,) = server.inside(keeping.stage, server.config, desired_state(2)).refusals
    assert "ip route del 10.60.3.0/24 dev mgmt proto 2" in refused.remedy


@network
def test_the_route_of_a_subnet_is_made_again_where_somebody_removed_it(
    server: ServerUnderTest,
) -> None:
    """Without it, a program that binds to no address leaves by the default route, and a route by a
    gateway of the subnet cannot be put back."""
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0")
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    during = server.sh("ip route show table main")
    server.sh("ip route flush dev pw-nic0")
    due = server.inside(keeping.read_back, server.config, 1).deviations
    assert ("addresses", "pw-nic0 10.7.0.1/24") in {(c.collection, c.key) for c in due}
    assert server.inside(keeping.resume, server.config).succeeded
    assert server.sh("ip route show table main") == during
    server.sh("ip route del 10.7.1.0/24 dev pw-nic1; ip route add 10.7.1.0/24 dev pw-nic1 metric 7")
    assert server.inside(keeping.read_back, server.config, 1).deviations == (), "it has another"
    server.sh("ip route del 10.7.1.0/24 dev pw-nic1 metric 7")
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


def of_nic1(server: ServerUnderTest) -> str:
    return server.sh("ip -4 address show nic1; ip rule show; ip route show table all dev nic1")


@network
def test_a_foreign_port_on_our_bridge_is_not_taken_away(server: ServerUnderTest) -> None:
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    server.vsctl("add-port pw-nic0 op0 -- set interface op0 type=internal")
    during = server.snapshot()
    fewer = desired_state(2, nics=("nic1",))
    for report in (
        server.inside(keeping.stage, server.config, fewer),
        server.inside(keeping.restore, server.config, 1),
        server.inside(keeping.destroy, server.config),
    ):
        (refusal,) = report.refusals
        assert (refusal.where, report.changes) == ("bridge pw-nic0", ())
        assert "port op0" in refusal.what and "take that off" in refusal.remedy
        assert server.snapshot() == during
    assert server.inside(keeping.preview, server.config, fewer).refusals == (refusal,)
    assert server.inside(keeping.observe, server.config).lease.phase == "committed"
    wider = tuple(b.model_copy(update={"mtu_bytes": 1400}) for b in desired_state().bridges)
    changed = desired_state(3, bridges=wider, rates=(9_000_000, 9_000_000))
    assert server.inside(keeping.stage, server.config, changed).succeeded
    assert "op0" in server.vsctl("list-ports pw-nic0")
    server.vsctl("del-port op0")
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


@network
def test_a_lease_that_ends_under_a_foreign_port_undoes_the_rest(server: ServerUnderTest) -> None:
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0")
    before, nic1_before = server.snapshot(), of_nic1(server)
    server.inside(keeping.stage, server.config, desired_state(1), 0.1)
    server.vsctl("add-port pw-nic0 op0 -- set interface op0 type=internal")
    time.sleep(0.2)
    for _ in range(2):
        report = server.inside(keeping.resume, server.config)
        assert report is not None and not report.succeeded
        assert "bridge pw-nic0: removing it would take away port op0" in report.refusals[0].what
    lease = server.inside(keeping.observe, server.config).lease
    assert lease.phase == "failed" and "port op0" in lease.detail
    assert of_nic1(server) == nic1_before, "what is in nobody's way is as before"
    assert "htb" not in server.sh("tc qdisc show")
    assert server.vsctl("list-br").split() == ["pw-nic0"]
    assert set(server.vsctl("list-ports pw-nic0").split()) == {"nic0", "op0"}
    assert server.inside(keeping.reaches, "10.7.0.2"), "over the bridge, as its NIC still is in it"
    assert "172.16.0.0/16 via 10.7.0.2 dev pw-nic0" in server.sh("ip route")
    server.vsctl("del-port op0")
    report = server.inside(keeping.resume, server.config)
    assert report is not None and report.succeeded
    assert server.snapshot() == before


@network
def test_a_foreign_qos_on_our_port_is_not_replaced(server: ServerUnderTest) -> None:
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    server.vsctl(
        "-- --id=@q create qos type=linux-htb other-config:max-rate=9000000 -- set port nic0 qos=@q"
    )
    during = server.snapshot()
    for report in (
        server.inside(keeping.stage, server.config, desired_state(2)),
        server.inside(keeping.restore, server.config, 1),
        server.inside(keeping.destroy, server.config),
    ):
        assert any("linux-htb QoS of port nic0" in r.what for r in report.refusals), report
        assert server.snapshot() == during
    server.vsctl("clear port nic0 qos")
    assert server.inside(keeping.destroy, server.config).succeeded
    server.vsctl("-- --all destroy qos")
    assert server.snapshot() == before


@network
def test_what_a_restore_cannot_reshape_is_said_and_the_rest_done(server: ServerUnderTest) -> None:
    """The baseline shapes a NIC on which somebody has put a QoS meanwhile."""
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    whole = server.sh("tc class show dev nic1; ip rule show")
    changed = desired_state(2, rates=(9_000_000, 9_000_000), rules=())
    server.inside(keeping.stage, server.config, changed, 0.1)
    server.vsctl(
        "-- --id=@q create qos type=linux-htb other-config:max-rate=9000000 -- set port nic0 qos=@q"
    )
    time.sleep(0.2)
    report = server.inside(keeping.resume, server.config)
    assert report is not None and "our shaping would replace" in report.refusals[0].what
    assert server.sh("tc class show dev nic1; ip rule show") == whole
    assert "1:fffe root rate 9Mbit" in server.sh("tc class show dev nic0"), "theirs is in force"
    server.vsctl("clear port nic0 qos")
    assert server.inside(keeping.resume, server.config).succeeded
    assert server.inside(keeping.read_back, server.config, 1).problems == ()


@network
def test_keys_that_others_put_into_our_rows_stay(server: ServerUnderTest) -> None:
    server.inside(keeping.stage, server.config, desired_state(1))
    server.vsctl(
        "set bridge pw-nic0 other_config:mac-table-size=4096 external_ids:theirs=1"
        " -- set queue $(ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock --bare --columns=_uuid find queue"
        " external_ids:placewire-nic=nic0 external_ids:placewire-queue=2) external_ids:theirs=2"
        " -- set qos $(ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock get port nic0 qos)"
        " other_config:theirs=3"
    )
    narrow = tuple(b.model_copy(update={"mtu_bytes": 1400}) for b in desired_state().bridges)
    shapers = tuple(
        s.model_copy(update={"max_bits_per_second": 49_000_000}) for s in desired_state().shapers
    )
    queues = tuple(
        q.model_copy(update={"max_bits_per_second": 9_000_000, "min_bits_per_second": 500_000})
        for q in desired_state().queues
    )
    changed = desired_state(2, bridges=narrow, shapers=shapers, queues=queues)
    assert server.inside(keeping.stage, server.config, changed).succeeded
    assert "4096" in server.vsctl("get bridge pw-nic0 other_config")
    shown = server.vsctl("list bridge pw-nic0 -- list qos -- list queue")
    assert all(f'theirs="{n}"' in shown for n in (1, 2, 3)), shown


@network
@pytest.mark.parametrize(
    "then", [thorough("the same again"), thorough("another"), "nothing of ours"]
)
def test_rows_that_others_left_without_a_port_go_with_the_next_change(
    server: ServerUnderTest, then: str
) -> None:
    """Rows of others stay, and so does a queue of ours that a QoS of theirs uses."""
    server.inside(keeping.stage, server.config, desired_state(1))
    server.vsctl("-- --id=@q create queue external_ids:placewire=here "
                 "-- create qos type=linux-htb queues:1=@q "
                 "-- create queue external_ids:whose=theirs")  # fmt: skip

    def rows() -> int:
        return server.vsctl("list qos -- list queue").count("_uuid")

    whole = rows()
    server.vsctl("clear port nic1 qos")
    unused = server.inside(keeping.observe, server.config).state.unused_rows
    assert Counter(row.table for row in unused) == {"QoS": 1, "Queue": 4}
    if then == "nothing of ours":
        report = server.inside(keeping.destroy, server.config)
    else:
        rates = (10_000_000, 30_000_000 if then == "the same again" else 20_000_000)
        wanted = desired_state(1 if then == "the same again" else 2, rates)
        report = server.inside(keeping.stage, server.config, wanted)
    assert report.succeeded, report.refusals
    removed = {change.key for change in report.changes if change.collection == "unused rows"}
    assert removed == {row.key for row in unused}
    assert server.inside(keeping.observe, server.config).state.unused_rows == ()
    assert rows() == (3 if then == "nothing of ours" else whole)


@network
def test_verify_sees_what_someone_changed(server: ServerUnderTest) -> None:
    server.inside(keeping.stage, server.config, desired_state())
    assert server.inside(keeping.read_back, server.config, 1).deviations == ()
    server.sh("tc class change dev nic0 parent 1:fffe classid 1:3 htb rate 1mbit ceil 1mbit")
    if DATAPATH == "netdev":
        server.sh("tc filter del dev nic1 parent 1: prio 20480")
    else:
        server.sh("ovs-ofctl -O OpenFlow13 del-flows unix:$OVS_RUNDIR/pw-nic1.mgmt tcp,reg0=2/3")
    server.sh("ip rule del priority 18001")
    found = server.inside(keeping.read_back, server.config, 1)
    drifted = {c.key for c in found.deviations if "nic0" in c.key}
    on_the_same_htb = {c.key for c in desired_state().classifiers if c.nic == "nic0"}
    assert drifted == {"nic0", *(f"nic0 queue {n}" for n in range(4)), *on_the_same_htb}
    others = {c.key for c in found.deviations} - drifted
    short_packets = "nic1 short packets" if DATAPATH == "netdev" else "pw-nic1 short packets"
    assert others == {short_packets, "18001 from 10.7.1.1/32"}
    assert any("nic0 queue 2: rate is 1000000" in problem for problem in found.problems)


@network
def test_a_qos_of_ours_of_which_somebody_made_another_kind_is_made_ours_again(
    server: ServerUnderTest,
) -> None:
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    server.vsctl("set qos $(ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock get port nic0 qos) "
                 "type=linux-noop")  # fmt: skip
    server.inside(keeping.resume, server.config)  # The filters go with the former discipline.
    assert server.inside(keeping.resume, server.config).succeeded
    found = server.inside(keeping.read_back, server.config, 1)
    assert found.deviations == () and found.problems == ()
    assert "linux-noop" not in server.vsctl("list qos")
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


CHANGED_CLASS = "tc class change dev nic0 parent 1:fffe classid 1:3 htb rate 1mbit ceil 1mbit"


@network
@pytest.mark.parametrize("meddle", [CHANGED_CLASS, "tc qdisc del dev nic0 root"])
@pytest.mark.parametrize("changed", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_shaping_that_someone_changed_in_the_kernel_is_mended(
    server: ServerUnderTest, meddle: str, changed: bool
) -> None:
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    whole = server.snapshot()
    server.sh(meddle)
    assert server.inside(keeping.read_back, server.config, 1).problems
    rates = (12_000_000, 30_000_000) if changed else (10_000_000, 30_000_000)
    report = server.inside(keeping.stage, server.config, desired_state(2, rates=rates))
    assert report.succeeded and report.changes, report.refusals
    rate = "12Mbit" if changed else "10Mbit"
    assert f"class htb 1:3 parent 1:fffe prio 0 rate {rate}" in server.sh("tc class show dev nic0")
    assert server.inside(keeping.read_back, server.config, 2).problems == ()
    if not changed:
        after, wanted = server.snapshot(), dict(whole)
        # Filters that were added again have new handles.
        assert after.pop("filters").count("flowid") == wanted.pop("filters").count("flowid")
        assert after == wanted
    server.sh(meddle)
    assert server.inside(keeping.restore, server.config, 2).succeeded
    assert server.inside(keeping.read_back, server.config, 1).problems == ()
    server.sh(meddle)
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


@network
def test_mending_a_class_leaves_foreign_filters(server: ServerUnderTest) -> None:
    server.inside(keeping.stage, server.config, desired_state(1))
    server.sh(
        "tc filter add dev nic0 parent 1: protocol ip prio 5 u32 match ip dst 9.9.9.9 flowid 1:1"
    )
    server.sh(CHANGED_CLASS)
    assert server.inside(keeping.stage, server.config, desired_state(1)).changes
    assert "09090909" in server.sh("tc filter show dev nic0")


@network
@pytest.mark.parametrize(
    ("prepare", "changes", "expected"),
    [
        ("true", {"take_over": ("nic0",)}, "holds 10.7.1.1/24"),
        ("ip address add 10.7.0.77/24 dev nic0", {}, "holds 10.7.0.77/24, which the plan"),
        ("ip link add kbr type bridge; ip link set nic1 master kbr", {}, "already a port of kbr"),
        ("tc qdisc add dev nic0 root tbf rate 1mbit burst 9kb latency 9ms", {}, "has a tbf"),
        ("ip rule add from 1.2.3.4 lookup 9 priority 18001", {}, "foreign rule"),
        ("ip route add 10.7.1.0/24 dev mgmt table 8001", {}, "foreign route"),
        ("ip link add pw-nic1 type veth peer name x", {}, "exists, and is not ours"),
        ("ip address add 10.7.1.77/32 dev lo", {}, "overlaps with 10.7.1.77/32 of lo"),
        (
            "ovs-vsctl --timeout=10 --db=unix:$OVS_RUNDIR/db.sock add-br theirs -- "
            f"set bridge theirs datapath_type={DATAPATH}; "
            "ip address add 10.7.1.77/24 dev theirs",
            {}, "overlaps with 10.7.1.77/24 of theirs",
        ),
        (
            "ip address add 10.20.0.1/32 dev lo; "
            "ip route add 10.9.0.254/32 dev nic0 src 10.20.0.1",
            {}, "is the way by which this server reaches its controller",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_is_not_touched(
    server: ServerUnderTest, prepare: str, changes: dict[str, Any], expected: str
) -> None:
    server.sh(prepare)
    before = server.snapshot()
    report = server.inside(keeping.stage, server.config, desired_state(1, **changes))
    assert not report.succeeded and report.changes == ()
    assert any(expected in refusal.what for refusal in report.refusals), report.refusals
    assert server.snapshot() == before
    assert server.inside(keeping.observe, server.config).lease.phase == "idle"


@network
def test_a_nic_that_its_owner_uses_again_is_not_taken_back(server: ServerUnderTest) -> None:
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    server.inside(keeping.stage, server.config, desired_state(2, nics=("nic1",)))
    server.sh("ip address add 192.168.5.1/24 dev nic0")
    shown = "ip -4 address show dev nic0; ip route show dev nic0"
    before = server.sh(shown)
    report = server.inside(keeping.restore, server.config, 2)
    assert "it holds 192.168.5.1/24" in report.refusals[0].what and report.changes == ()
    server.inside(keeping.commit, server.config, 2, 0.1)
    time.sleep(0.2)
    report = server.inside(keeping.resume, server.config)
    assert "it holds 192.168.5.1/24" in report.refusals[0].what
    assert server.sh(shown) == before
    server.sh("ip address del 192.168.5.1/24 dev nic0")
    assert server.inside(keeping.resume, server.config).succeeded
    observed = server.inside(keeping.observe, server.config)
    assert (observed.lease.phase, observed.lease.generation) == ("committed", 1)
    assert {bridge.nic for bridge in observed.state.bridges} == {"nic0", "nic1"}


@network
def test_what_the_system_refuses_half_way_is_undone(server: ServerUnderTest) -> None:
    """The last sysctl does not take its value: bridge and addresses have already moved by then."""
    before = server.snapshot()
    bad = Sysctl(name="net.ipv4.conf.nic0.rp_filter", value="many")
    report = server.inside(keeping.stage, server.config, desired_state(1, sysctls=(bad,)))
    assert not report.succeeded
    assert "rp_filter = many" in report.refusals[0].what
    assert server.snapshot() == before


@network
def test_what_does_not_read_back_is_undone(server: ServerUnderTest) -> None:
    """The kernel reads this value as an octal number, which only the read-back shows."""
    before = server.snapshot()
    clamped = Sysctl(name="net.ipv4.conf.nic0.rp_filter", value="010")
    report = server.inside(
        keeping.stage_impatiently, server.config, desired_state(1, sysctls=(clamped,))
    )
    assert not report.succeeded
    assert "read back and not as wanted" in report.refusals[0].what
    assert server.snapshot() == before


def test_flows_of_others_are_told_apart_by_cookie() -> None:
    ours = " cookie=0x50570000000000aa, priority=20480,ip,in_port=LOCAL,nw_dst=10.7.0.2 "
    (flow,), none = parse_flows("pw-nic0", ours + "actions=set_queue:2,NORMAL")
    assert flow.model_dump() == {"bridge": "pw-nic0", "destination": "10.7.0.2", "queue_id": 2}
    assert not none
    of_others = "cookie=0x1, priority=20480,ip,nw_dst=10.7.0.2 actions=drop"
    ours_there, (foreign,) = parse_flows("b", of_others)
    assert (ours_there, foreign.key, foreign.text) == ([], "b to 10.7.0.2", f"flow {of_others}")
    elsewhere = "cookie=0x1, priority=5,ip,nw_dst=10.7.0.2 actions=drop\n"
    bare = "priority=0 actions=NORMAL"
    for of_a_new_bridge in (bare, f"cookie=0x0, {bare}"):
        ours_there, (other,) = parse_flows("b", f"{elsewhere} {of_a_new_bridge}")
        assert ours_there == [] and other.on == "b"
    assert "to" not in other.key.split(), "it is in the place of none of ours"


LENGTH = (
    " cookie=0x5057000000000000, priority=20482,tcp,reg0=0/0x2,in_port=LOCAL,tcp_flags=-psh "
    "actions=load:0x1->NXM_NX_REG0[1],check_pkt_larger(141)->NXM_NX_REG0[0],resubmit(,0)\n"
)
SHORT = (
    " cookie=0x5057000000000000, priority=20481,tcp,reg0=0x2/0x3,in_port=LOCAL actions="
    "set_queue:1,NORMAL\n"
)


@pytest.mark.parametrize(
    ("text", "queue_id"),
    [
        (LENGTH + SHORT, 1),
        (LENGTH, -1),
        (SHORT, -1),
        (LENGTH.replace("141", "9000") + SHORT, -1),
        (LENGTH + SHORT.replace("set_queue:1,", ""), -1),
    ],
)
def test_two_flows_are_one_for_short_packets_and_half_of_it_is_none(
    text: str, queue_id: int
) -> None:
    assert parse_flows("b", text) == ([Flow(bridge="b", destination=None, queue_id=queue_id)], [])


def test_a_foreign_flow_where_that_for_short_packets_would_be_is_seen() -> None:
    none, (foreign,) = parse_flows("b", SHORT.replace("0x5057", "0x0001"))
    assert (none, foreign.key) == ([], "b short packets")


def test_a_classifier_for_a_prefix_keeps_its_length() -> None:
    state = Collections(classifiers=(Classifier(nic="n", destination="10.0.0.0/8", queue_id=2),))
    assert canonical(state).classifiers[0].destination == "10.0.0.0/8"


@network
@pytest.mark.parametrize(
    "fault",
    [NetlinkError(19, "No such device"), KeyError("nic0"), ValueError("no JSON"), OSError()],
)
def test_what_goes_wrong_in_a_driver_is_an_effect_error(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(*_: object) -> None:
        raise fault

    here = Server(server.config)
    monkeypatch.setattr("placewire.agent.drivers.interfaces.InterfaceView", fail)
    with pytest.raises(UnreadableError, match=f"reading .*{type(fault).__name__}"):
        here.observe(Unmarked())
    bridge = EntryStep(None, Bridge(name="pw-nic0", nic="nic0", datapath=DATAPATH))
    with pytest.raises(EffectError, match=f"add bridges pw-nic0: {type(fault).__name__}"):
        here.apply([bridge], "plan")


@network
def test_a_bridge_over_a_nic_that_is_gone_is_said(server: ServerUnderTest) -> None:
    bridge = EntryStep(None, Bridge(name="pw-nic7", nic="nic7", datapath=DATAPATH))
    with pytest.raises(AssertionError, match="EffectError: NIC nic7 is gone"):
        server.inside(Server(server.config).apply, [bridge], "plan")


@network
@pytest.mark.parametrize("destroyed", [True, False], ids=["all goes", "another NIC stays"])
def test_shaping_goes_though_somebody_removed_the_bridge_under_it(
    server: ServerUnderTest, destroyed: bool
) -> None:
    """ovs-vswitchd leaves the HTB of a port that is removed before its QoS."""
    before = server.sh("tc qdisc show dev nic1")
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    server.vsctl("del-br pw-nic1")
    wait_for(lambda: "pw-nic1" not in server.sh("ip -br link"), "the bridge's end")
    assert "htb" in server.sh("tc qdisc show dev nic1"), "what this test is about"
    if destroyed:
        server.inside(keeping.destroy, server.config)
    else:
        server.inside(keeping.stage, server.config, desired_state(2, nics=("nic0",)))
    assert server.sh("tc qdisc show dev nic1") == before
    assert "10.7.1.1/24" in server.sh("ip address show nic1")


@network
def test_a_state_is_staged_though_somebody_just_removed_a_bridge_of_ours(
    server: ServerUnderTest,
) -> None:
    """The bridge was not put back yet, and Open vSwitch left our HTB on the NIC."""
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    server.vsctl("del-br pw-nic1")
    wait_for(lambda: "pw-nic1" not in server.sh("ip -br link"), "the bridge's end")
    assert "htb" in server.sh("tc qdisc show dev nic1"), "what this test is about"
    wanted = desired_state(2, (20_000_000, 20_000_000))
    assert not server.inside(keeping.preview, server.config, wanted).refusals
    report = server.inside(keeping.stage, server.config, wanted)
    assert report.succeeded, report
    server.inside(keeping.commit, server.config, 2)
    found = server.inside(keeping.read_back, server.config, 2)
    assert not found.deviations and not found.problems
    server.inside(keeping.destroy, server.config)
    assert server.snapshot() == before


@network
def test_what_others_made_since_it_was_looked_is_not_overwritten(server: ServerUnderTest) -> None:
    """Calls the drivers directly: the keeper has looked before, and saw nothing."""
    desired = desired_state(1, nics=("nic0",))
    server.inside(keeping.stage, server.config, desired)
    server.vsctl("add-br pw-nic1 -- set bridge pw-nic1 datapath_type=" + DATAPATH)
    server.vsctl("-- --id=@q create qos type=linux-htb -- set port nic0 qos=@q")
    server.sh("ip route add 10.7.9.0/24 dev mgmt table 8000")
    during = server.snapshot()
    ours = desired.routes[0].model_copy(update={"destination": "10.7.9.0/24"})
    for step, expected in (
        (EntryStep(None, desired_state().bridges[1]), "pw-nic1 exists, and is not ours"),
        (
            EntryStep(desired.bridges[0], None, ("10.7.0.1/24",)),
            "nic0 has a QoS that is not ours",
        ),
        (EntryStep(None, ours), "File exists"),
    ):
        with pytest.raises(AssertionError, match=f"EffectError: .*{expected}"):
            server.inside(Server(server.config).apply, [step], "plan")
        assert server.snapshot() == during


@network
def test_a_switch_that_made_its_interfaces_anew_comes_back_whole(server: ServerUnderTest) -> None:
    """The new interfaces are down, without addresses and routes."""
    server.sh("ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0")
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    server.sh("ovs-appctl -t $OVS_RUNDIR/ovs-vswitchd.$(cat $OVS_RUNDIR/vswitchd.pid).ctl "
              "exit --cleanup")  # fmt: skip
    server.processes[1].wait(60)
    start_vswitchd(server)
    wait_for(lambda: "pw-nic1" in server.sh("ip link"), "bridges")
    assert "172.16.0.0/16" not in server.sh("ip route"), "else this shows nothing"
    report = server.inside(keeping.resume, server.config)
    assert report is not None and report.succeeded, report
    assert "172.16.0.0/16 via 10.7.0.2 dev pw-nic0" in server.sh("ip route")
    assert server.inside(keeping.reaches, "10.7.0.2")
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before
