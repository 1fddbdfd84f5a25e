"""What others have on our bridges and queues stays: real Open vSwitch, tc and netlink."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from placewire.agent.contract.entries import Address, Bridge, Queue, Route, Shaper
from placewire.agent.contract.state import Refusal
from placewire.agent.drivers.server import Server
from placewire.agent.reconcile.steps import EntryStep
from tests.agent import keeping
from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state

pytestmark = pytest.mark.network

_V6 = "sysctl -qw net.ipv6.conf.pw-nic0.disable_ipv6=0; "
_MANAGEMENT = "unix:$OVS_RUNDIR/pw-nic0.mgmt"
_VSCTL = "ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock"
_COMMAND = re.compile(r"\((.+)\), then ask again")


class Thing(NamedTuple):
    """make: how its owner makes it. where: what a refusal says it is on. look, shown: a command,
    and what that shows while it is there."""

    make: str
    where: str
    look: str
    shown: str


THINGS = {
    "address": Thing(
        "ip address add 10.99.0.7/24 dev pw-nic0", "bridge pw-nic0",
        "ip address show pw-nic0", "10.99.0.7/24",
    ),
    "address of our subnet": Thing(
        "ip address add 10.7.0.77/24 dev pw-nic0", "bridge pw-nic0",
        "ip address show pw-nic0", "10.7.0.77/24",
    ),
    "IPv6 address": Thing(
        _V6 + "ip address add fd00::7/64 dev pw-nic0 nodad", "bridge pw-nic0",
        "ip -6 address show pw-nic0", "fd00::7/64",
    ),
    "IPv6 route": Thing(
        _V6 + "ip -6 route add 2001:db8::/32 dev pw-nic0", "bridge pw-nic0",
        "ip -6 route", "2001:db8::/32",
    ),
    "route": Thing(
        "ip route add 10.60.0.0/16 via 10.7.0.2 dev pw-nic0", "bridge pw-nic0",
        "ip route", "10.60.0.0/16",
    ),
    "route as the kernel's": Thing(
        "ip route add 10.63.0.0/16 via 10.7.0.2 dev pw-nic0 proto kernel", "bridge pw-nic0",
        "ip route", "10.63.0.0/16",
    ),
    "route in our table": Thing(
        "ip route add 10.61.0.0/16 dev pw-nic0 table 8000", "bridge pw-nic0",
        "ip route show table 8000", "10.61.0.0/16",
    ),
    "route elsewhere with our source": Thing(
        "ip route add 10.62.0.0/16 dev mgmt src 10.7.0.1", "bridge pw-nic0",
        "ip route", "10.62.0.0/16",
    ),
    "neighbour": Thing(
        "ip neigh add 10.7.0.9 lladdr 02:00:00:00:00:09 dev pw-nic0 nud permanent",
        "bridge pw-nic0", "ip neigh show dev pw-nic0", "10.7.0.9",
    ),
    "neighbour without ARP": Thing(
        "ip neigh add 10.7.0.8 lladdr 02:00:00:00:00:08 dev pw-nic0 nud noarp",
        "bridge pw-nic0", "ip neigh show dev pw-nic0 nud all", "10.7.0.8",
    ),
    "interface": Thing(
        "ip link add link pw-nic0 name mv0 type macvlan", "bridge pw-nic0",
        "ip -br link", "mv0",
    ),
    "bridge above": Thing(
        "ip link add br9 type bridge 2>/dev/null; ip link set pw-nic0 master br9",
        "bridge pw-nic0", "ip link show master br9", "pw-nic0",
    ),
    "discipline of the bridge": Thing(
        "tc qdisc add dev pw-nic0 root tbf rate 90mbit burst 20kb latency 50ms", "bridge pw-nic0",
        "tc qdisc show dev pw-nic0", "tbf",
    ),
    "flow": Thing(
        f"ovs-ofctl add-flow {_MANAGEMENT} cookie=7,priority=99,tcp,tp_dst=7,actions=drop",
        "bridge pw-nic0", f"ovs-ofctl --no-stats dump-flows {_MANAGEMENT}", "tp_dst=7",
    ),
    "flow of any match": Thing(
        f"ovs-ofctl -O OpenFlow13 add-flow {_MANAGEMENT} cookie=7,table=3,actions=drop",
        "bridge pw-nic0", f"ovs-ofctl --no-stats dump-flows {_MANAGEMENT}", "table=3",
    ),
    "group": Thing(
        f"ovs-ofctl -O OpenFlow13 add-group {_MANAGEMENT} group_id=7,type=all,bucket=output:1",
        "bridge pw-nic0", f"ovs-ofctl -O OpenFlow13 dump-groups {_MANAGEMENT}", "group_id=7",
    ),
    "meter": Thing(
        f"ovs-ofctl -O OpenFlow13 add-meter {_MANAGEMENT} meter=3,kbps,band=type=drop,rate=1000",
        "bridge pw-nic0", f"ovs-ofctl -O OpenFlow13 dump-meters {_MANAGEMENT}", "meter=3",
    ),
    "mirror": Thing(
        f"{_VSCTL} -- --id=@m create mirror name=m0 -- set bridge pw-nic0 mirrors=@m",
        "bridge pw-nic0", f"{_VSCTL} list mirror", "m0",
    ),
    "sample collectors": Thing(
        f"{_VSCTL} -- --id=@b get bridge pw-nic0 -- create flow_sample_collector_set id=7 "
        "bridge=@b", "bridge pw-nic0", f"{_VSCTL} list flow_sample_collector_set", "bridge",
    ),
    "table of flows": Thing(
        f"{_VSCTL} -- --id=@t create flow_table name=t0 -- set bridge pw-nic0 flow_tables:1=@t",
        "bridge pw-nic0", f"{_VSCTL} list flow_table", "t0",
    ),
    "filter": Thing(
        "tc filter add dev nic0 parent 1: protocol ip prio 5 u32 match ip dst 9.9.9.9 flowid 1:1",
        "NIC nic0", "tc filter show dev nic0", "09090909",
    ),
    "filter of the inner class": Thing(
        "tc filter add dev nic0 parent 1:fffe protocol ip prio 7 u32 match ip dst 9.9.9.9 "
        "flowid 1:1", "NIC nic0", "tc filter show dev nic0 parent 1:fffe", "09090909",
    ),
    "discipline of a class": Thing(
        "tc qdisc add dev nic0 parent 1:3 handle 10: pfifo limit 9", "NIC nic0",
        "tc qdisc show dev nic0", "pfifo 10:",
    ),
    "class": Thing(
        "tc class add dev nic0 parent 1:fffe classid 1:500 htb rate 1mbit", "NIC nic0",
        "tc class show dev nic0", "1:500",
    ),
    "queue": Thing(
        f"{_VSCTL} -- --id=@q create queue other_config:max-rate=1000000 "
        f"-- set qos $({_VSCTL} get port nic0 qos) queues:9=@q", "NIC nic0",
        f"{_VSCTL} list qos", "9=",
    ),
}  # fmt: skip
ON_QUEUES = ("filter", "filter of the inner class", "discipline of a class", "class")
ALONE = (
    "bridge above",  # Its port takes no macvlan.
    "queue",  # With it, the switch writes all of the HTB anew.
)
# Each of them is refused for itself, so that one server can have many.
TOGETHER = {
    "on the bridge": [name for name in THINGS if name not in (*ON_QUEUES, *ALONE)],
    "on the queues": ON_QUEUES,
    **{name: [name] for name in ALONE},
}
TBF = Thing(
    "tc qdisc replace dev nic0 root tbf rate 1mbit burst 9kb latency 9ms", "NIC nic0",
    "tc qdisc show dev nic0", "tbf",
)  # fmt: skip


def make(server: ServerUnderTest, thing: Thing) -> None:
    server.sh(thing.make)
    assert is_there(server, thing), "else this shows nothing"


def is_there(server: ServerUnderTest, thing: Thing) -> bool:
    return thing.shown in server.sh(thing.look)


def commands_of(refusals: tuple[Refusal, ...], things: Sequence[Thing]) -> set[str]:
    """The commands that the refusals name, one for each thing."""
    assert {refusal.where for refusal in refusals} == {thing.where for thing in things}, refusals
    assert all("not ours" in refusal.what for refusal in refusals), refusals
    found = [_COMMAND.search(refusal.remedy) for refusal in refusals]
    assert None not in found, refusals
    commands = {one[1] for one in found if one is not None}
    assert len(commands) == len(refusals) == len(things), refusals
    return commands


def whole_again(server: ServerUnderTest, before: dict[str, str]) -> None:
    """Rows of others in Open vSwitch's database stay for ever; they are taken away here."""
    server.sh(f"{_VSCTL} -- --all destroy queue; ip link del br9 2>/dev/null; true")
    assert server.snapshot() == before


@pytest.mark.parametrize("names", TOGETHER.values(), ids=TOGETHER)
def test_healing_and_changes_leave_them_and_a_destroy_names_each(
    server: ServerUnderTest, names: Sequence[str]
) -> None:
    before = server.snapshot()
    there = {name: THINGS[name] for name in names}
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    for thing in there.values():
        make(server, thing)
    server.sh("ip rule del priority 18000; ip route flush table 8001")
    healed = server.inside(keeping.resume, server.config)
    assert healed.succeeded and {c.collection for c in healed.changes} == {"routes", "rules"}
    changed = desired_state(2, rates=(12_000_000, 20_000_000))
    assert server.inside(keeping.stage, server.config, changed).succeeded
    server.inside(keeping.commit, server.config, 2)
    assert server.inside(keeping.restore, server.config, 2).succeeded, "back to the first rates"
    assert gone(server, there) == []
    during = server.snapshot()
    commands = []
    for refused in (
        lambda: server.inside(keeping.stage, server.config, desired_state(3, nics=("nic1",))),
        lambda: server.inside(keeping.destroy, server.config),
    ):
        report = refused()
        assert report.changes == ()
        commands.append(commands_of(report.refusals, [*there.values()]))
        assert server.snapshot() == during and gone(server, there) == []
    assert commands[0] == commands[1]
    for command in sorted(commands[0]):
        server.sh(command)
        (name,) = gone(server, there)  # The command is exact.
        del there[name]
    assert not there
    assert server.inside(keeping.destroy, server.config).succeeded
    whole_again(server, before)


def gone(server: ServerUnderTest, things: Mapping[str, Thing]) -> list[str]:
    """The names of those that are not there."""
    between = "=====look====="
    looks = f" && echo {between} && ".join(thing.look for thing in things.values())
    shown = server.sh(looks).split(f"{between}\n")
    each = zip(things.items(), shown, strict=True)
    return [name for (name, thing), found in each if thing.shown not in found]


@pytest.mark.parametrize("name", ["address of our subnet", "flow", "route in our table", "filter"])
def test_a_lease_that_ends_undoes_the_rest(server: ServerUnderTest, name: str) -> None:
    thing, before = THINGS[name], server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1), 0.1)
    make(server, thing)
    time.sleep(0.2)
    for _ in range(2):
        report = server.inside(keeping.resume, server.config)
        assert report is not None and not report.succeeded
        lease = server.inside(keeping.observe, server.config).lease
        assert lease.phase == "failed" and thing.where in lease.detail
    assert is_there(server, thing)
    assert server.vsctl("list-br").split() == ["pw-nic0"]
    assert "10.7.1.1/24" in server.sh("ip address show nic1"), "the other NIC is as before"
    assert server.inside(keeping.reaches, "10.7.0.2"), "over the bridge, as its NIC still is in it"
    (command,) = _COMMAND.findall(lease.detail)
    server.sh(command)
    report = server.inside(keeping.resume, server.config)
    assert report is not None and report.succeeded
    assert server.snapshot() == before


def test_a_discipline_in_the_place_of_our_htb_is_left_and_named(server: ServerUnderTest) -> None:
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    make(server, TBF)
    during = server.snapshot()
    for report in (
        server.inside(keeping.stage, server.config, desired_state(2)),
        server.inside(keeping.destroy, server.config),
    ):
        assert report.changes == () and "tbf queueing discipline" in report.refusals[0].what
        assert "tc qdisc del dev nic0 root" in report.refusals[0].remedy
    healed = server.inside(keeping.resume, server.config)
    assert healed is not None and not healed.succeeded
    assert server.snapshot() == during
    server.sh("tc qdisc del dev nic0 root")
    assert server.inside(keeping.resume, server.config).succeeded
    assert server.inside(keeping.read_back, server.config, 1).problems == ()
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


def test_what_the_kernel_and_open_vswitch_make_themselves_is_in_nobodys_way(
    server: ServerUnderTest,
) -> None:
    """Link-local addresses, multicast and kernel routes, the first flow of a bridge."""
    before = server.snapshot()
    server.inside(keeping.stage, server.config, desired_state(1))
    server.sh(_V6 + "ip link set pw-nic0 down; ip link set pw-nic0 up; sleep 0.2")
    wait_for(lambda: "fe80" in server.sh("ip -6 address show pw-nic0"), "what the kernel makes")
    assert server.inside(keeping.observe, server.config).state.foreign == ()
    assert server.inside(keeping.restore, server.config, 1).succeeded
    assert server.snapshot() == before


def test_what_came_since_it_was_looked_is_not_removed(server: ServerUnderTest) -> None:
    """Calls the drivers directly: the keeper has looked before, and saw nothing."""
    desired = desired_state(1, nics=("nic0",))
    server.inside(keeping.stage, server.config, desired)
    (bridge,), (address,), (shaper,) = desired.bridges, desired.addresses, desired.shapers
    assert isinstance(bridge, Bridge) and isinstance(shaper, Shaper)
    own = ("10.7.0.1/24",)
    all_queues = [
        *(EntryStep(queue, None) for queue in desired.queues),
        EntryStep(shaper, None),
    ]
    queue = next(q for q in desired.queues if isinstance(q, Queue) and q.queue_id == 2)
    for name, steps in (
        ("address", [EntryStep(bridge, None, own)]),
        ("IPv6 address", [EntryStep(bridge, None, own)]),
        ("route", [EntryStep(bridge, None, own)]),
        ("flow", [EntryStep(bridge, None, own)]),
        ("mirror", [EntryStep(bridge, None, own)]),
        ("interface", [EntryStep(bridge, None, own)]),
        ("address of our subnet", [EntryStep(address, None, own)]),
        ("route elsewhere with our source", [EntryStep(address, None, own)]),
        ("filter", all_queues),
        ("queue", all_queues),
        ("discipline of a class", [EntryStep(queue, None)]),
    ):
        assert isinstance(address, Address)
        thing = THINGS[name]
        make(server, thing)
        during = server.snapshot()
        with pytest.raises(AssertionError, match=r"EffectError: .*not ours") as raised:
            server.inside(Server(server.config).apply, steps, "plan")
        assert server.snapshot() == during and is_there(server, thing), name
        *_, command = re.findall(r"is not ours \((.+?)\)(?:;|$)", str(raised.value))
        if name == "queue":  # The driver sees its class, which goes with the row.
            command = f"{_VSCTL} remove qos $({_VSCTL} get port nic0 qos) queues 9"
        server.sh(command)
        assert not is_there(server, thing), name


def test_a_route_that_came_into_the_place_of_ours_is_not_replaced(server: ServerUnderTest) -> None:
    desired = desired_state(1, nics=("nic0",))
    server.inside(keeping.stage, server.config, desired)
    (route,) = desired.routes
    assert isinstance(route, Route)
    changed = route.model_copy(update={"gateway": "10.7.0.3"})
    server.inside(Server(server.config).apply, [EntryStep(route, changed)], "plan")
    assert "via 10.7.0.3" in server.sh("ip route show table 8000"), "ours is replaced"
    server.sh("ip route del 10.7.0.0/24 table 8000; ip route add 10.7.0.0/24 dev mgmt table 8000")
    during = server.snapshot()
    with pytest.raises(AssertionError, match=r"EffectError: .*File exists"):
        server.inside(Server(server.config).apply, [EntryStep(changed, route)], "plan")
    assert server.snapshot() == during


def test_what_others_put_on_a_nic_beside_its_own_address_is_not_taken_away_with_that(
    server: ServerUnderTest,
) -> None:
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    route, again = "10.99.0.0/16 via 10.7.0.2 dev nic0", "ip address add 10.7.0.1/24 dev nic0"
    server.sh(f"{again}; ip address add 10.7.0.77/24 dev nic0; ip route add {route}")
    server.sh("ip neigh add 10.7.0.9 lladdr 02:00:00:00:00:09 dev nic0 nud permanent")
    for command in (
        "ip address del 10.7.0.77/24 dev nic0",
        f"ip route del {route}",
        "ip neigh del 10.7.0.9 dev nic0",
    ):
        during = server.snapshot()
        (told,) = server.inside(keeping.resume, server.config).refusals
        assert "NIC nic0: moving 10.7.0.1/24 to pw-nic0" in told.what and command in told.what
        assert server.snapshot() == during
        assert "10.7.0.9" in server.sh("ip neigh show dev nic0 nud permanent")
        server.sh(command)
    assert server.inside(keeping.resume, server.config).succeeded
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


@pytest.mark.parametrize("how", ["del-br pw-nic0", "del-port nic0"])
def test_a_nic_that_somebody_took_out_of_our_bridge_for_another_address_is_left_to_them(
    server: ServerUnderTest, how: str
) -> None:
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    server.vsctl(how)
    server.sh("ip address add 192.168.5.1/24 dev nic0")
    for _ in range(2):
        (told,) = server.inside(keeping.resume, server.config).refusals
        assert "192.168.5.1/24" in told.what
        there = server.sh("ip address show nic0")
        assert "192.168.5.1/24" in there and "10.7.0.1/24" in there
        assert server.vsctl("list-br").split() == ["pw-nic1"]
    server.sh("ip address del 192.168.5.1/24 dev nic0")
    assert server.inside(keeping.resume, server.config).succeeded
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


def test_an_interface_that_another_namespace_has_on_our_bridge_is_named_and_stays(
    server: ServerUnderTest,
) -> None:
    """As container runtimes make macvlans, in the container's namespace from the beginning."""
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    server.sh(f"ip link add link pw-nic0 name mv0 netns {server.peer} type macvlan")
    server.sh("ip link set mv0 up", peer=True)
    mac = server.sh("cat /sys/class/net/mv0/address", peer=True).strip()
    (refusal,) = server.inside(keeping.destroy, server.config).refusals
    assert refusal.where == "bridge pw-nic0" and mac in refusal.what, refusal
    desired = desired_state(1, nics=("nic0",))
    with pytest.raises(AssertionError, match=rf"{mac}.*not ours; take"):
        step = EntryStep(desired.bridges[0], None, ("10.7.0.1/24",))
        server.inside(Server(server.config).apply, [step], "plan")
    assert "mv0" in server.sh("ip link show mv0", peer=True)
    server.sh("ip link del mv0", peer=True)
    server.sh("ip link add link pw-nic0 name mv0 type macvlan; ip link set mv0 up")
    (refusal,) = server.inside(keeping.destroy, server.config).refusals
    assert "interface mv0" in refusal.what, "one of this namespace is named once"
    server.sh("ip link del mv0")
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


def test_a_bridge_whose_interface_has_another_name_now_is_undone(server: ServerUnderTest) -> None:
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    server.sh("ip link set pw-nic0 down; ip link set pw-nic0 name other0; ip link set other0 up")
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before


_USERS = {
    "their QoS, with our queue": (
        f"{_VSCTL} -- create qos type=linux-htb queues:1=$({_VSCTL} --bare --columns=_uuid find "
        "queue external_ids:placewire-nic=nic0 external_ids:placewire-queue=2)",
        "its queue 1 is nic0 queue 2",
    ),
    "their port, with our QoS": (
        f"{_VSCTL} -- set port br9 qos=$({_VSCTL} get port nic0 qos)", "the QoS of port br9",
    ),
    "another port of ours": (
        f"{_VSCTL} -- set port nic1 qos=$({_VSCTL} get port nic0 qos)", "the QoS of port nic1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), _USERS.values(), ids=_USERS)
def test_what_uses_our_rows_is_named_and_blocks_nothing_else(
    server: ServerUnderTest, make: str, said: str
) -> None:
    """The database removes no row to which another one refers."""
    server.vsctl(f"add-br br9 -- set bridge br9 datapath_type={DATAPATH}")
    before = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.inside(keeping.commit, server.config, 1)
    server.sh(f"{make}; ip rule del priority 18000")
    healed = server.inside(keeping.resume, server.config)
    assert "18000:" in server.sh("ip rule") and "reference" not in str(healed.refusals)
    changed = desired_state(2, nics=("nic0",), rates=(12_000_000, 20_000_000))
    if "nic1" not in said:
        assert server.inside(keeping.stage, server.config, changed).succeeded
        server.inside(keeping.commit, server.config, 2)
    during = server.snapshot()
    report = server.inside(keeping.destroy, server.config)
    assert report.changes == () and server.snapshot() == during
    (refusal,) = (one for one in report.refusals if said in one.what)
    assert refusal.where == "NIC nic0"
    found = _COMMAND.search(refusal.remedy)
    assert found is not None
    server.sh(f"{_VSCTL} {found[1].removeprefix('ovs-vsctl ')}")
    assert server.inside(keeping.destroy, server.config).succeeded
    server.sh(f"{_VSCTL} -- --all destroy qos")
    assert server.snapshot() == before


def test_an_address_that_is_back_after_a_vip_of_its_subnet_is_told(
    server: ServerUnderTest,
) -> None:
    """The kernel has it as a secondary, and removes it when the VIP moves on."""
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.inside(keeping.commit, server.config, 1)
    server.sh("ip address add 10.7.0.50/24 dev nic0")
    assert server.inside(keeping.destroy, server.config).succeeded
    assert "secondary" in server.sh("ip address show dev nic0 to 10.7.0.1"), "else nothing is told"
    detail = server.inside(keeping.observe, server.config).lease.detail
    assert "nic0 has 10.7.0.1/24 back after 10.7.0.50/24" in detail
    server.sh("sysctl -qw net.ipv4.conf.nic0.promote_secondaries=1")
    server.sh("ip address del 10.7.0.50/24 dev nic0")
    assert "10.7.0.1/24" in server.sh("ip address show dev nic0"), "as it is told"


def test_a_vlan_that_somebody_gave_a_port_of_ours_is_told(server: ServerUnderTest) -> None:
    """Nothing of the rail passes such a port, and nothing of ours differs."""
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    assert server.inside(keeping.read_back, server.config, 1).problems == ()
    server.vsctl("set port nic0 tag=7 -- set port pw-nic1 trunks=7,8")
    told = server.inside(keeping.read_back, server.config, 1).problems
    assert sorted(one[:34] for one in told) == [
        "port nic0 of pw-nic0 passes only w", "port pw-nic1 of pw-nic1 passes onl",
    ]  # fmt: skip
    for one in told:
        server.sh(f"{_VSCTL} {one.partition('(ovs-vsctl ')[2].rstrip(')')}")
    assert server.inside(keeping.read_back, server.config, 1).problems == ()
