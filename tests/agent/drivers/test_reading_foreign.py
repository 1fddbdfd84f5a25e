"""What of others the drivers make of the words of `tc`, `ip` and `ovs-ofctl`."""

from __future__ import annotations

import json
import shlex
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.agent.contract.entries import Address, Classifier, Queue, Shaper
from placewire.agent.contract.state import (
    MOST_DOUBLED,
    ForeignEntry,
    Ledger,
    NicFacts,
    ObservedState,
    TakenOver,
)
from placewire.agent.drivers import (
    interfaces,
    nic_moves,
    on_queues,
    openflow,
    routes,
    traffic_control,
)
from placewire.agent.drivers.disciplines import Discipline
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.on_bridges import made_by_kernel, read_on_bridges, require_alone
from placewire.agent.drivers.openflow import parse_flows
from placewire.agent.drivers.ovsdb_references import References, references_of
from placewire.agent.drivers.switch_view import SwitchView
from placewire.agent.drivers.traffic_control import Filter, read_classifiers, read_foreign
from placewire.agent.reconcile.diff import over_bridge
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.foreign_kinds import (
    DISCIPLINES,
    INTERFACES,
    ON_BRIDGES,
    ON_QUEUES,
    PORTS,
    USERS,
)
from placewire.agent.reconcile.ledger import extended, has_back
from placewire.agent.reconcile.steps import EntryStep, NicStep
from tests.agent.states import desired_state

OWN_FILTERS = """\
filter parent 1: protocol ip pref 20480 u32 chain 0
filter parent 1: protocol ip pref 20480 u32 chain 0 fh 801: ht divisor 1
filter parent 1: protocol ip pref 20481 u32 chain 0
filter parent 1: protocol ip pref 20481 u32 chain 0 fh 800: ht divisor 1
filter parent 1: protocol ip pref 20481 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 \
flowid 1:3 not_in_hw
  match 0a070002/ffffffff at 16
"""
THEIR_FILTERS = """\
filter parent 1: protocol ip pref 5 u32 chain 0
filter parent 1: protocol ip pref 5 u32 chain 0 fh 802: ht divisor 1
filter parent 1: protocol ip pref 5 u32 chain 0 fh 802::800 order 2048 key ht 802 bkt 0 \
flowid 1:1 not_in_hw
  match 09090909/ffffffff at 16
filter parent 1: protocol all pref 6 matchall chain 7
filter parent 1: protocol all pref 6 matchall chain 7 handle 0x1
  not_in_hw
filter parent 1: protocol ip pref 20481 u32 chain 0 fh 800::801 order 2049 key ht 800 bkt 0 \
flowid 1:4 not_in_hw
  match 0a070003/ffffffff at 12
filter parent 1: protocol ip pref 20481 u32 chain 0 fh 800::802 order 2050 key ht 800 bkt 0 \
terminal flowid not_in_hw
  match 0a070003/ffffffff at 12
filter parent 1: protocol ip pref 20999 flower chain 0
filter parent 1: protocol ip pref 20999 flower chain 0 handle 0x1 classid 1:2
  eth_type ipv4
  dst_ip 10.7.0.9
"""


class Said:
    """Answers in the place of the system's tools."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def __call__(self, command: list[str], stdin: str | None = None) -> str:
        words = " ".join(command)
        self.asked.append(words if stdin is None else f"{words}\n{stdin}")
        if words == "tc -batch -":
            lines = (stdin or "").splitlines()
            return "".join(self._answers.get(f"tc {line}", "") for line in lines)
        return self._answers.get(words, "[]" if " -j" in words else "")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    answers: dict[str, str] = {}
    for module in (traffic_control, interfaces, routes):
        monkeypatch.setattr(module, "run", Said(answers))
    has(monkeypatch)
    return answers


def has(monkeypatch: pytest.MonkeyPatch, **disciplines: tuple[Discipline, ...]) -> None:
    """Gives interfaces these queueing disciplines, and others none."""
    by_name = {name.replace("pw_", "pw-"): found for name, found in disciplines.items()}
    monkeypatch.setattr(interfaces, "read_disciplines", lambda _: by_name)


def remedies(found: list[ForeignEntry]) -> dict[str, tuple[str, str]]:
    """By the command that removes it: what it is on, and its collection."""
    assert len({entry.remedy for entry in found}) == len(found), found
    return {entry.remedy: (entry.on, entry.collection) for entry in found}


# -- tc --------------------------------------------------------------------------------------------


def test_our_filters_are_none_of_others(said: dict[str, str]) -> None:
    said["tc filter show dev nic0"] = OWN_FILTERS
    ours, foreign = read_classifiers(["nic0"])
    assert ours == [Classifier(nic="nic0", destination="10.7.0.2", queue_id=2)]
    assert foreign == []


def test_each_filter_of_others_is_told_with_what_removes_it(said: dict[str, str]) -> None:
    said["tc filter show dev nic0"] = OWN_FILTERS + THEIR_FILTERS
    ours, foreign = read_classifiers(["nic0"])
    assert len(ours) == 1
    of_ours = "tc filter del dev nic0 parent 1: protocol ip pref 20481 handle"
    assert remedies(foreign) == {
        "tc filter del dev nic0 parent 1: protocol ip pref 5": ("nic0 queue 0", "filters"),
        "tc filter del dev nic0 parent 1: chain 7 protocol all pref 6": ("nic0", "filters"),
        f"{of_ours} 800::801 u32": ("nic0 queue 3", "classifiers"),
        f"{of_ours} 800::802 u32": ("nic0", "classifiers"),
        "tc filter del dev nic0 parent 1: protocol ip pref 20999": ("nic0 queue 1", "classifiers"),
    }
    assert {entry.key for entry in foreign if entry.collection == "classifiers"} == {"nic0"}


ADDRESS_BITS = 0xFFFFFFFF


@settings(max_examples=200, deadline=None)
@given(
    value=st.integers(0, ADDRESS_BITS),
    mask=st.one_of(
        st.integers(0, ADDRESS_BITS),
        st.integers(0, 32).map(lambda length: ADDRESS_BITS ^ (ADDRESS_BITS >> length)),
    ),
    within=st.booleans(),
)
def test_only_a_filter_for_a_network_is_taken_for_one_of_ours(
    value: int, mask: int, *, within: bool
) -> None:
    compared = value & mask if within else value
    found = Filter(20481, "800::800", 0x10003, {(compared, mask, 16)}).classifier("nic0")
    if found is not None:
        network = IPv4Network(found.destination)
        assert (int(network.network_address), int(network.netmask)) == (compared, mask)


@pytest.mark.parametrize("match", ["0a070009/ffffff00", "0a000000/ff00ff00"])
def test_a_filter_of_odd_bits_in_our_place_is_told_and_keeps_nothing_from_being_read(
    said: dict[str, str], match: str
) -> None:
    odd = OWN_FILTERS.splitlines()[4].replace("800::800", "800::801")
    said["tc filter show dev nic0"] = f"{OWN_FILTERS}{odd}\n  match {match} at 16\n"
    ours, foreign = read_classifiers(["nic0"])
    assert [one.destination for one in ours] == ["10.7.0.2"]
    assert list(remedies(foreign)) == [
        "tc filter del dev nic0 parent 1: protocol ip pref 20481 handle 800::801 u32"
    ]


def test_what_is_on_a_class_is_found(said: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        traffic_control,
        "_with_filters",
        lambda nic, parents: [p for p in parents if f"tc filter show dev {nic} parent {p}" in said],
    )
    disciplines = [
        Discipline("htb", "1:", ""),
        Discipline("fq_codel", "10:", "1:3"),
        Discipline("sfq", "20:", "10:1"),
        Discipline("clsact", "ffff:", "ffff:fff1"),
    ]
    line = "filter protocol ip pref 49152 u32 chain 0 fh 800::800 order 2048 flowid 1:1 not_in_hw\n"
    said["tc filter show dev nic0 parent 1:fffe"] = line
    said["tc filter show dev nic0 parent 1:2"] = line
    found = read_foreign("nic0", [0, 1, 2, 1279], disciplines, ours={0, 1, 2})
    assert remedies(found) == {
        "tc qdisc del dev nic0 parent 1:3": ("nic0 queue 2", "queueing disciplines"),
        "tc class del dev nic0 classid 1:500": ("nic0", "classes"),
        "tc filter del dev nic0 parent 1:fffe protocol ip pref 49152": ("nic0 queue 0", "filters"),
        "tc filter del dev nic0 parent 1:2 protocol ip pref 49152": ("nic0 queue 1", "filters"),
    }
    left = read_foreign("nic0", [7], [], ours=None)
    assert "classes" not in {entry.collection for entry in left}, "nobody knows whose they are"


def test_nothing_is_asked_class_by_class_while_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = Said({})
    monkeypatch.setattr(traffic_control, "run", tool)
    assert read_foreign("nic0", range(256), [], ours=range(256)) == []
    assert len(tool.asked) == 1 and tool.asked[0].count("parent") == 257


@pytest.mark.parametrize(
    ("root", "shaped", "foreign"),
    [
        (None, True, False),
        (("htb", "1:"), True, False),
        (("tbf", "8001:"), True, True),
        (("htb", "9:"), True, True),
        # Of others, on a port of ours that has no queues; or not yet removed by ovs-vswitchd.
        (("htb", "1:"), False, True),
        (("htb", "1:", "ovs"), False, False),
    ],
)
def test_a_discipline_in_the_place_of_our_htb(
    said: dict[str, str], monkeypatch: pytest.MonkeyPatch, root: tuple[str, ...] | None,
    shaped: bool, foreign: bool,
) -> None:  # fmt: skip
    if root is not None:
        kind, handle, *of = root
        has(monkeypatch, nic0=(Discipline(kind, handle, ""),))
        if of:
            said["tc class show dev nic0"] = "class htb 1:fffe root rate 1Mbit"
    queue_ids = {"nic0": {0}} if shaped else {}
    found = list(on_queues.read_on_queues(InterfaceView(), ["nic0"], [], queue_ids))
    assert [entry.collection for entry in found] == (["shapers"] if foreign else [])
    assert [entry.remedy for entry in found] == (["tc qdisc del dev nic0 root"] if foreign else [])


NIC = [{"ifindex": 1, "ifname": "nic0", "flags": ["UP"], "mtu": 1500, "address": ""}]
SHAPER = Shaper(nic="nic0", max_bits_per_second=9)
QUEUE = Queue(nic="nic0", queue_id=2, min_bits_per_second=1, max_bits_per_second=9, burst_bits=9,
              purpose="")  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([EntryStep(None, SHAPER)], ["root"]),
        ([EntryStep(SHAPER, SHAPER)], []),
        ([EntryStep(QUEUE, None)], ["parent 1:3"]),
        ([EntryStep(QUEUE, None), EntryStep(SHAPER, None)], ["pref 5", "parent 1:3", "root"]),
    ],
    ids=["a new shaper", "another rate", "a queue goes", "a shaper goes"],
)
def test_queues_are_not_removed_with_what_others_have_on_them(
    said: dict[str, str], monkeypatch: pytest.MonkeyPatch, steps: list[EntryStep],
    refused: list[str],
) -> None:  # fmt: skip
    said["ip -N -j -d address show"] = json.dumps(NIC)
    said["tc filter show dev nic0"] = THEIR_FILTERS.partition("filter parent 1: protocol all")[0]
    has(monkeypatch, nic0=(Discipline("tbf", "8001:", ""), Discipline("sfq", "10:", "1:3")))
    monkeypatch.setattr(on_queues, "read_queues", lambda _: [])
    try:
        on_queues.require_free(steps)
        message = ""
    except EffectError as error:
        message = str(error)
    found = [word for word in ("pref 5", "parent 1:3", "root") if f"{word})" in message]
    assert found == refused, message


# -- ip --------------------------------------------------------------------------------------------


def v6(local: str, scope: str, **flags: Any) -> dict[str, Any]:
    return {"family": "inet6", "local": local, "prefixlen": 64, "scope": scope, **flags}


@pytest.mark.parametrize(
    ("entry", "kernels"),
    [
        (v6("fe80::fc:ff:fe00:1", "253"), True),
        (v6("fe80::2c3a:41ff:fe22:5", "253"), True),
        (v6("fe80::9a1:3:2:7", "253", **{"stable-privacy": True}), True),
        (v6("fe80::9a1:3:2:7", "253", protocol="0x3"), True),
        (v6("fd00::9a1:3:2:7", "0", dynamic=True, mngtmpaddr=True), True),
        (v6("fd00::9a1:3:2:8", "0", dynamic=True, temporary=True), True),
        (v6("fe80::1", "253"), False),
        (v6("fd00::2", "0"), False),
        (v6("fd00::fc:ff:fe00:1", "0"), False),
        (v6("fd00::3", "0", dynamic=True), False),
        ({"family": "inet", "local": "10.1.1.1", "prefixlen": 24, "scope": "0"}, False),
    ],
)
def test_what_the_kernel_made_by_itself_is_not_foreign(
    entry: dict[str, Any], kernels: bool
) -> None:
    assert made_by_kernel(entry) == kernels


LINKS: list[dict[str, Any]] = [
    {
        "ifindex": 2, "ifname": "pw-nic0", "flags": ["UP"], "mtu": 1500,
        "address": "02:00:00:00:00:01",
        "addr_info": [
            {"family": "inet", "local": "10.7.0.1", "prefixlen": 24, "scope": "0"},
            {"family": "inet", "local": "10.7.0.77", "prefixlen": 24, "scope": "0"},
            {"family": "inet", "local": "10.99.0.7", "address": "10.99.0.8", "prefixlen": 32,
             "scope": "0"},
            v6("fd00::7", "0"), v6("fe80::fc:ff:fe00:1", "253"),
        ],
    },
    {"ifindex": 3, "ifname": "vlan7", "link": "pw-nic0", "flags": [], "mtu": 1500, "address": ""},
    {"ifindex": 4, "ifname": "mgmt", "flags": ["UP"], "mtu": 1500, "address": "", "addr_info": []},
]  # fmt: skip
ROUTES = """\
172.16.0.0/16 via 10.7.0.2 dev pw-nic0 proto 4 metric 50
10.7.0.0/24 dev pw-nic0 proto 2 scope 253 src 10.7.0.1
10.60.0.0/16 dev pw-nic0 scope 253 linkdown
10.61.0.0/16 dev pw-nic0 table 8000 scope 253
10.7.0.0/24 dev pw-nic0 table 8000 proto 80 scope 253 src 10.7.0.1
10.62.0.0/16 dev mgmt scope 253 src 10.7.0.1
default proto 4 \\ nexthop via 10.7.0.8 dev pw-nic0 weight 1 \\ nexthop via 10.9.0.1 dev mgmt
2 10.7.0.1 dev pw-nic0 table 255 proto 2 scope 254 src 10.7.0.1
"""
ROUTES_V6 = """\
fd00::/64 dev pw-nic0 proto 2 metric 256 pref medium
fe80::/64 dev pw-nic0 proto 2 metric 256 pref medium
fd01::/64 dev pw-nic0 proto 9 metric 256 expires 86391sec pref medium
2001:db8::/32 via fe80::1 dev pw-nic0 metric 1024 expires 55sec pref medium
default via fd00::1 dev mgmt metric 1024 pref medium
5 ff00::/8 dev pw-nic0 table 255 proto 2 metric 256 pref medium
"""
OWN = ("10.7.0.1/24", "172.16.0.0/16 via 10.7.0.2 dev pw-nic0 proto 4 metric 50")


@pytest.fixture
def a_busy_bridge(said: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    said["ip -N -j -d address show"] = json.dumps(LINKS)
    said["ip -N -o -4 route show table all"] = ROUTES
    said["ip -N -o -6 route show table all"] = ROUTES_V6
    said["ip -N -j neigh show nud all"] = json.dumps(
        [{"dst": "10.7.0.9", "dev": "pw-nic0", "lladdr": "02:00:00:00:00:09",
          "state": ["PERMANENT"]},
         {"dst": "10.7.0.2", "dev": "pw-nic0", "lladdr": "02:00:00:00:00:02", "state": ["STALE"]},
         {"dst": "10.9.0.9", "dev": "mgmt", "lladdr": "02:00:00:00:00:19",
          "state": ["PERMANENT"]}]
    )  # fmt: skip
    said["ip -N -j neigh show proxy"] = json.dumps([{"dst": "10.7.0.8", "dev": "pw-nic0"}])
    said["ip -N -j nexthop show"] = json.dumps(
        [{"id": 7, "gateway": "10.7.0.2", "dev": "pw-nic0", "scope": "253", "flags": []},
         {"id": 8, "dev": "mgmt", "scope": "254", "flags": []},
         # As zebra makes them by itself.
         {"id": 12, "dev": "pw-nic0", "scope": "253", "protocol": "11", "flags": []},
         {"id": 9, "group": [{"id": 7}, {"id": 8}], "flags": []}]
    )  # fmt: skip
    said["ip -N -o -4 route show table 255"] = (
        "2 10.7.0.1 dev pw-nic0 proto 2 scope 254 src 10.7.0.1\n"
        "2 192.0.2.0/24 dev pw-nic0 scope 254\n"
        "198.51.100.0/24 dev pw-nic0 scope 253\n"
    )
    has(
        monkeypatch,
        pw_nic0=(
            Discipline("tbf", "8001:", ""),
            Discipline("clsact", "ffff:", "ffff:fff1"),
            Discipline("sfq", "8002:", "8001:1"),
        ),
    )
    return said


@pytest.mark.parametrize("kind", ["ipvlan", "macvlan"])
def test_what_another_namespace_has_on_a_bridge_is_told(said: dict[str, str], kind: str) -> None:
    """An ipvlan has the link-layer address of the bridge. Groups, and what a bridge above enters,
    are nobody's interface."""
    own, group, other = "02:00:00:00:00:01", "33:33:00:00:00:01", "02:00:00:00:00:77"
    links = [{"ifname": "pw-nic0", "ifindex": 5, "flags": [], "address": own, "addr_info": []}]
    found = {"flags": ["self"], "state": "permanent"}
    entries = [{"mac": mac, **found} for mac in (own, group, other)]
    entries.append({"mac": "02:00:00:00:00:78", "flags": ["master"], "state": "permanent"})
    said["bridge -j fdb show dev pw-nic0"] = json.dumps(entries)

    def told() -> list[str]:
        said["ip -N -j -d address show"] = json.dumps(links)
        on = read_on_bridges(InterfaceView(), "pw-nic0", OWN, offloads=False)
        return [entry.key for entry in on if entry.collection == INTERFACES]

    assert told() == [f"pw-nic0 {own}", f"pw-nic0 {other}"]
    links.append({"ifname": "v0", "ifindex": 6, "link": "pw-nic0", "flags": [], "addr_info": [],
                  "address": own if kind == "ipvlan" else other,
                  "linkinfo": {"info_kind": kind}})  # fmt: skip
    assert told() == ["v0", f"pw-nic0 {other if kind == 'ipvlan' else own}"]
    links.pop(0)
    assert told() == ["v0"], "nothing is asked of an interface that is gone"


@pytest.mark.usefixtures("a_busy_bridge")
def test_each_thing_on_a_bridge_is_told_with_what_removes_it() -> None:
    found = read_on_bridges(InterfaceView(), "pw-nic0", OWN, offloads=False)
    assert {entry.on for entry in found} == {"pw-nic0"}
    assert {entry.collection for entry in found} <= set(ON_BRIDGES)
    multipath = "nexthop via 10.7.0.8 dev pw-nic0 weight 1 nexthop via 10.9.0.1 dev mgmt"
    assert {entry.remedy: entry.key for entry in found} == {
        "ip address del 10.7.0.77/24 dev pw-nic0": "pw-nic0 10.7.0.77/24",
        "ip address del 10.99.0.7 peer 10.99.0.8/32 dev pw-nic0": "pw-nic0 10.99.0.7/32",
        "ip address del fd00::7/64 dev pw-nic0": "pw-nic0 fd00::7/64",
        "ip route del 10.60.0.0/16 dev pw-nic0 scope 253": "10.60.0.0/16 dev pw-nic0 scope 253",
        "ip route del 10.61.0.0/16 dev pw-nic0 table 8000 scope 253": "table 8000 10.61.0.0/16",
        f"ip route del default proto 4 {multipath}": f"default proto 4 {multipath}",
        "ip route del 2001:db8::/32 via fe80::1 dev pw-nic0 metric 1024 expires 0 pref medium":
            "2001:db8::/32 via fe80::1 dev pw-nic0 metric 1024 expires 0 pref medium",
        "ip neigh del 10.7.0.9 dev pw-nic0": "pw-nic0 10.7.0.9",
        "ip neigh del proxy 10.7.0.8 dev pw-nic0": "pw-nic0 proxy 10.7.0.8",
        "ip nexthop del id 7": "pw-nic0 id 7 via 10.7.0.2 dev pw-nic0",
        "ip route del local 192.0.2.0/24 dev pw-nic0 scope 254":
            "local 192.0.2.0/24 dev pw-nic0 scope 254",
        "ip route del 198.51.100.0/24 dev pw-nic0 scope 253 table 255":
            "198.51.100.0/24 dev pw-nic0 scope 253 table 255",
        "ip link del vlan7": "vlan7",
        "tc qdisc del dev pw-nic0 root": "pw-nic0 8001:",
        "tc qdisc del dev pw-nic0 clsact": "pw-nic0 ffff:",
    }  # fmt: skip


def test_routes_beside_nics_and_bridges_are_read(a_busy_bridge: dict[str, str]) -> None:
    br_ex = {"ifindex": 9, "ifname": "br-ex", "flags": ["UP"], "mtu": 1500, "address": "",
             "addr_info": [of_nic0("10.99.0.1")]}  # fmt: skip
    a_busy_bridge["ip -N -j -d address show"] = json.dumps([*LINKS, br_ex])
    a_busy_bridge["ip -N -o -4 route show table all"] += (
        "10.99.0.0/24 dev br-ex proto 2 scope 253 src 10.99.0.1\n"
        "10.88.0.0/16 via 10.99.0.254 dev br-ex src 10.7.0.1\n"
        "10.89.0.0/16 dev lo scope 253 src 10.7.0.1\n"
        "10.87.0.0/16 via 10.99.0.253 dev br-ex proto 2 src 10.7.0.1\n"
    )
    assert InterfaceView().foreign_routes_beside({"pw-nic0", "mgmt"}) == (
        "10.89.0.0/16 dev lo scope 253 src 10.7.0.1",
        "10.88.0.0/16 via 10.99.0.254 dev br-ex src 10.7.0.1",
        "10.87.0.0/16 via 10.99.0.253 dev br-ex proto 2 src 10.7.0.1",
    )


def test_an_interface_of_any_name_keeps_no_address_of_ours_from_being_removed(
    a_busy_bridge: dict[str, str],
) -> None:
    """An interface may have a word of `ip route` as its name."""
    (first, *others) = LINKS
    own, _, elsewhere, *_ = first["addr_info"]
    a_busy_bridge["ip -N -j -d address show"] = json.dumps(
        [{**first, "addr_info": [own, elsewhere]}, *others]
    )
    a_busy_bridge["ip -N -o -4 route show table all"] = "".join(
        f"10.88.0.0/16 via 10.99.0.254 dev {name}\n" for name in ("table", "src", "dev", "via")
    )
    require_alone(Address(interface="pw-nic0", address="10.7.0.1/24"), OWN)


def test_an_address_of_another_family_keeps_nothing_from_being_read(said: dict[str, str]) -> None:
    of_mctp = {"family_index": 45, "local": "8", "prefixlen": 0, "scope": "0"}
    link = {**LINKS[0], "addr_info": [of_mctp, of_nic0("10.7.0.1")]}
    said["ip -N -j -d address show"] = json.dumps([link])
    assert InterfaceView().addresses("pw-nic0") == ["10.7.0.1/24"]


@pytest.mark.usefixtures("a_busy_bridge")
def test_the_disciplines_that_open_vswitch_makes_for_offloading_are_its_own() -> None:
    found = read_on_bridges(InterfaceView(), "pw-nic0", OWN, offloads=True)
    assert [e.text.split()[0] for e in found if e.collection == "queueing disciplines"] == ["tbf"]


@pytest.mark.usefixtures("a_busy_bridge")
def test_an_address_is_not_removed_with_what_the_kernel_removes_with_it() -> None:
    address = Address(interface="pw-nic0", address="10.7.0.1/24")
    with pytest.raises(EffectError) as raised:
        require_alone(address, OWN)
    assert "ip address del 10.7.0.77/24" in str(raised.value), "it came later"
    assert "10.62.0.0/16 dev mgmt scope 253 src 10.7.0.1" in str(raised.value)
    assert "fd00::7" not in str(raised.value) and "10.60.0.0" not in str(raised.value)


def test_an_address_that_another_interface_has_too_takes_no_route_with_it(
    a_busy_bridge: dict[str, str],
) -> None:
    (first, *others) = LINKS
    own, _, elsewhere, *_ = first["addr_info"]
    alone = {**first, "addr_info": [own, elsewhere]}
    nic = {"ifindex": 5, "ifname": "nic0", "flags": ["UP"], "mtu": 1500,
           "address": "", "addr_info": [own]}  # fmt: skip
    a_busy_bridge["ip -N -j -d address show"] = json.dumps([alone, nic, *others])
    require_alone(Address(interface="pw-nic0", address="10.7.0.1/24"), OWN)


def test_with_its_last_address_an_interface_loses_routes_and_neighbours_of_ipv4(
    a_busy_bridge: dict[str, str],
) -> None:
    (first, *others) = LINKS
    own, *_, of_v6, _ = first["addr_info"]
    a_busy_bridge["ip -N -j -d address show"] = json.dumps(
        [{**first, "addr_info": [own, of_v6]}, *others]
    )
    with pytest.raises(EffectError) as raised:
        require_alone(Address(interface="pw-nic0", address="10.7.0.1/24"), OWN)
    said = str(raised.value)
    assert "ip route del 10.60.0.0/16 dev pw-nic0" in said and "ip neigh del 10.7.0.9" in said
    assert "ip neigh del proxy 10.7.0.8" in said and "local 192.0.2.0/24" in said
    assert "2001:db8" not in said and "nexthop object" not in said and "vlan7" not in said


def test_of_several_addresses_that_go_together_none_counts_as_left(
    a_busy_bridge: dict[str, str],
) -> None:
    (first, *others) = LINKS
    own, also, *_ = first["addr_info"]
    a_busy_bridge["ip -N -j -d address show"] = json.dumps(
        [{**first, "addr_info": [own, also]}, *others]
    )
    a_busy_bridge["ip -N -o -4 route show table all"] = "10.60.0.0/16 dev pw-nic0 scope 253\n"
    one, other = (
        Address(interface="pw-nic0", address=f"{entry['local']}/24") for entry in (own, also)
    )
    both = [one.address, other.address]
    require_alone(one, both)
    require_alone(one, both, [one, other.model_copy(update={"interface": "pw-nic1"})])
    with pytest.raises(EffectError, match=r"ip route del 10\.60\.0\.0/16 dev pw-nic0"):
        require_alone(one, both, [one, other])


# -- a NIC's own routes --------------------------------------------------------------------------


def of_nic0(local: str, **flags: Any) -> dict[str, Any]:
    return {"family": "inet", "local": local, "prefixlen": 24, "scope": "0", **flags}


def nic0(said: dict[str, str], addresses: list[dict[str, Any]], *routes: str) -> NicFacts:
    link = {"ifindex": 6, "ifname": "nic0", "flags": ["UP"], "mtu": 1500,
            "address": "02:00:00:00:00:01", "addr_info": addresses}  # fmt: skip
    said["ip -N -j -d address show"] = json.dumps([link])
    said["ip -N -o -4 route show table all"] = "\n".join(f"{route} " for route in routes)
    (found,) = InterfaceView().nics({}, ())
    return found


SUBNET = "10.7.0.0/24 dev nic0 proto 2 scope 253 src 10.7.0.1 metric 100"
GATEWAY = "10.50.0.0/16 via 10.7.0.254 dev nic0 proto 4 metric 100"
LOCAL = "2 10.7.0.1 dev nic0 table 255 proto 2 scope 254 src 10.7.0.1"


def test_a_route_that_the_kernel_does_not_make_by_itself_is_a_nics_own(
    said: dict[str, str],
) -> None:
    flagged = of_nic0("10.7.0.1", noprefixroute=True)
    assert nic0(said, [flagged], GATEWAY, SUBNET, LOCAL).routes == (SUBNET, GATEWAY)
    plain = of_nic0("10.7.0.1", metric=100)
    assert nic0(said, [plain], GATEWAY, SUBNET, LOCAL).routes == (GATEWAY,)
    to_a_node = "10.60.2.0/24 via 10.7.0.2 dev nic0 proto 2"
    assert nic0(said, [plain], GATEWAY, SUBNET, to_a_node).routes == (GATEWAY, to_a_node)
    # Beside it, those of addresses with which the kernel makes one.
    peer = of_nic0("10.8.0.1", address="10.8.0.2", prefixlen=32)
    made = (
        "10.9.0.0/24 dev nic0 proto 2 scope 253 src 10.9.0.1",
        "10.8.0.2 dev nic0 proto 2 scope 253 src 10.8.0.1",
    )
    assert nic0(said, [flagged, of_nic0("10.9.0.1"), peer], *made, SUBNET).routes == (SUBNET,)


def test_a_nics_own_subnet_moves_and_comes_back_before_its_gateway(said: dict[str, str]) -> None:
    facts = nic0(said, [of_nic0("10.7.0.1", noprefixroute=True)], GATEWAY, SUBNET)
    desired = desired_state(1, nics=("nic0",))
    (held,) = extended(desired, ObservedState(nics=(facts,)), Ledger()).nics
    moving = [" ".join(c) for c in nic_moves._to_bridge(NicStep("to bridge", "pw-nic0", held))]
    added = [words for words in moving if words.startswith("ip route append ")]
    assert added == [
        f"ip route append {over_bridge(r, 'nic0', 'pw-nic0')}" for r in (SUBNET, GATEWAY)
    ]
    assert f"ip route del {SUBNET}" in moving

    bare = nic0(said, [])
    assert not has_back(held, bare)
    back = [" ".join(c) for c in nic_moves._back(NicStep("back", "", held))]
    assert back[-2:] == [f"ip route append {SUBNET}", f"ip route append {GATEWAY}"]
    without = facts.model_copy(update={"routes": (GATEWAY,)})
    assert has_back(held, facts) and not has_back(held, without)


def test_a_route_of_a_type_is_moved_in_its_own_table(said: dict[str, str]) -> None:
    """`ip route` looks for some types in table local, where no table is said."""
    found = nic0(said, [], *(f"{number} 10.7.9.{number} dev nic0" for number in range(2, 6)))
    assert found.routes == (
        "local 10.7.9.2 dev nic0 table 254",
        "broadcast 10.7.9.3 dev nic0 table 254",
        "anycast 10.7.9.4 dev nic0 table 254",
        "multicast 10.7.9.5 dev nic0",
    )
    (in_another,) = nic0(said, [], "3 10.7.9.3 dev nic0 table 61").routes
    assert in_another == "broadcast 10.7.9.3 dev nic0 table 61"


def test_whose_ipv6_routes_are(said: dict[str, str]) -> None:
    """Of `proto kernel` are those that the kernel makes with an address, and also what a program
    makes in their stead. A default route says its family by its destination."""
    said["ip -N -o -6 route show table all"] = (
        "fe80::/64 dev nic0 proto 2 metric 256 pref medium\n"
        "default via fe80::2 dev nic0 proto 9 metric 1024 expires 1798sec pref medium\n"
        "fd02::/64 dev nic0 proto 2 metric 256 expires 55sec pref medium\n"
        "fd00::/64 dev nic0 proto 2 metric 70 pref medium\n"
        "fd01::/64 dev nic0 proto 2 metric 256 pref medium\n"
        "fd03::/64 dev nic0 proto 2 metric 1024 pref medium\n"
        "fd04::9 dev nic0 proto 2 metric 256 pref medium\n"
        "2001:db8::/32 via fe80::2 dev nic0 proto 4 metric 20 pref medium\n"
        "default via fd00::9 dev nic0 metric 1024 pref medium\n"
    )
    addresses = [
        v6("fd00::1", "0", metric=70), v6("fd01::1", "0", noprefixroute=True),
        {**v6("fd04::1", "0", address="fd04::9"), "prefixlen": 128},
    ]  # fmt: skip
    found = nic0(said, addresses)
    assert found.routes == (
        "fd01::/64 dev nic0 proto 2 metric 256 pref medium",
        "fd03::/64 dev nic0 proto 2 metric 1024 pref medium",
        "2001:db8::/32 via fe80::2 dev nic0 proto 4 metric 20 pref medium",
        "::/0 via fd00::9 dev nic0 metric 1024 pref medium",
    )
    assert found.advertised_routes == (
        "fd02::/64 dev nic0 proto 2 metric 256 expires 0 pref medium",
        "::/0 via fe80::2 dev nic0 proto 9 metric 1024 expires 0 pref medium",
    )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (v6("fd00::1", "0"), "scope 0"),
        (v6("fec0::1", "200", metric=7, noprefixroute=True, nodad=True),
         "scope 200 metric 7 noprefixroute nodad"),
        (v6("fd00::1", "0", deprecated=True, preferred_life_time=0), "scope 0 preferred_lft 0"),
        (v6("fd00::1", "0", dynamic=True, mngtmpaddr=True), "scope 0 mngtmpaddr dynamic"),
        (v6("fd00::1", "0", preferred_life_time=55), "scope 0 dynamic"),
        (v6("fd00::1", "0", preferred_life_time=4294967295), "scope 0"),
        (v6("fd00::1", "0", dadfailed=True), "scope 0 dadfailed"),
        (v6("fe80::1", "253"), None),
    ],
)  # fmt: skip
def test_an_ipv6_address_is_told_with_what_it_takes_to_give_it_back(
    said: dict[str, str], entry: dict[str, Any], words: str | None
) -> None:
    expected = () if words is None else (f"{entry['local']}/64 {words}",)
    assert nic0(said, [entry]).address_commands == expected


def test_routes_in_one_place_are_a_fact(said: dict[str, str]) -> None:
    lines = [
        "10.50.0.0/16 via 10.7.0.2 dev nic0 metric 5",
        "10.50.0.0/16 via 10.7.0.3 dev nic0 metric 5",
        "10.50.0.0/16 via 10.9.0.3 dev mgmt metric 6",
        "10.50.0.0/16 via 10.7.0.3 dev nic0 metric 7",
        "10.50.0.0/16 tos 0x10 via 10.7.0.3 dev nic0 metric 5",
        "10.51.0.0/16 via 10.7.0.2 dev nic0",
        "unreachable 10.51.0.0/16",
        "10.52.0.0/16 via 10.7.0.2 dev nic0 table 7",
        "10.52.0.0/16 via 10.9.0.3 dev mgmt",
        "default via 10.7.0.2 dev nic0 proto 4",
        "default via 10.9.0.3 dev mgmt proto 4",
    ]
    facts = nic0(said, [of_nic0("10.7.0.1")], *lines)
    assert facts.doubled_routes == (lines[0], lines[1], lines[5], lines[9])
    many = [f"10.60.{n}.0/24 via 10.7.0.{m} dev nic0" for n in range(200) for m in (2, 3)]
    facts = nic0(said, [of_nic0("10.7.0.1")], *many)
    assert len(facts.routes) == 400 and len(facts.doubled_routes) == MOST_DOUBLED


def test_what_the_kernel_drops_with_the_last_address_is_a_fact(said: dict[str, str]) -> None:
    of_all: list[tuple[str, str, str, dict[str, Any]]] = [
        ("10.7.0.9", "nic0", "PERMANENT", {}), ("10.7.0.9", "mgmt", "PERMANENT", {}),
        ("fd00::9", "nic0", "PERMANENT", {}), ("10.7.0.2", "nic0", "REACHABLE", {}),
        ("10.7.0.3", "nic0", "REACHABLE", {"extern_learn": None}),
        ("10.7.0.4", "nic0", "INCOMPLETE", {"managed": None}),
        ("10.7.0.5", "nic0", "NOARP", {"lladdr": "02:00:00:00:00:05"}),
        ("10.7.0.255", "nic0", "NOARP", {"lladdr": "ff:ff:ff:ff:ff:ff"}),
        ("224.0.0.22", "nic0", "NOARP", {"lladdr": "01:00:5e:00:00:16"}),
    ]  # fmt: skip
    said["ip -N -j neigh show nud all"] = json.dumps(
        [{"dst": to, "dev": dev, "state": [state], **more} for to, dev, state, more in of_all]
    )
    said["ip -N -j neigh show proxy"] = json.dumps([{"dst": "10.7.0.8", "dev": "nic0"}])
    said["ip -N -o -4 route show table 255"] = """\
2 10.7.0.1 dev nic0 proto 2 scope 254 src 10.7.0.1
2 192.0.2.0/24 dev nic0 scope 254
2 198.51.100.0/24 dev lo scope 254
"""
    assert nic0(said, [of_nic0("10.7.0.1")]).lost_with_addresses == (
        *(f"neigh 10.7.0.{host} dev nic0" for host in (9, 3, 4, 5)),
        "neigh proxy 10.7.0.8 dev nic0",
        "route local 192.0.2.0/24 dev nic0 scope 254",
    )
    with_v6 = nic0(said, [of_nic0("10.7.0.1"), v6("fd00::1", "0")]).lost_with_addresses
    assert "neigh fd00::9 dev nic0" in with_v6


def test_a_route_of_ours_is_ours_by_its_numbers(said: dict[str, str]) -> None:
    ours = "10.7.0.0/24 dev pw-nic0 table {} proto {} scope 253 src 10.7.0.1"
    lines = [ours.format(8000, 186), ours.format(7999, 80), "10.99.0.0/24 dev pw-nic0 proto 80"]
    said["ip -N -o -4 route show table all"] = "\n".join([ours.format(8000, 80), *lines])
    assert routes.read_routes() == lines


def test_a_moved_route_of_the_subnet_is_seen_on_the_bridge(said: dict[str, str]) -> None:
    made = "10.7.0.0/24 dev pw-nic0 proto 2 scope 253 src 10.7.0.1"
    moved = over_bridge(SUBNET, "nic0", "pw-nic0")
    bridge = {"ifindex": 7, "ifname": "pw-nic0", "flags": ["UP"], "mtu": 1500,
              "address": "", "addr_info": [of_nic0("10.7.0.1")]}  # fmt: skip
    said["ip -N -j -d address show"] = json.dumps([bridge])
    said["ip -N -o -4 route show table all"] = f"{moved}\n{made}\n"
    assert InterfaceView().foreign_routes("pw-nic0") == (moved,)
    # Where the NIC had the very one that the kernel makes on the bridge.
    assert InterfaceView().foreign_routes("pw-nic0", also=[made]) == (moved, made)


def test_an_address_lacks_the_route_of_its_subnet_where_there_is_none(said: dict[str, str]) -> None:
    made, own = "10.7.0.0/24 dev nic0 proto 2 scope 253 src 10.7.0.1", of_nic0("10.7.0.1")
    for route, lacks in (
        (made, False), ("10.7.0.0/24 dev nic0 scope 253 metric 7", False),
        (made.replace("nic0", "mgmt"), True), (GATEWAY, True),
    ):  # fmt: skip
        nic0(said, [own], route)
        assert InterfaceView().lacks_its_subnet("nic0", "10.7.0.1/24") is lacks, route
        assert not InterfaceView().lacks_its_subnet("nic0", "10.7.0.1/32")


# -- Open vSwitch ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (" cookie=0x7, priority=99,tcp,tp_dst=9 actions=drop",
         "cookie=0x7/-1,table=0,priority=99,tcp,tp_dst=9"),
        (" table=3, idle_timeout=60, priority=5,arp actions=resubmit(,table=4)",
         "cookie=0/-1,table=3,priority=5,arp"),
        (" cookie=0x7, udp,in_port=2 actions=NORMAL", "cookie=0x7/-1,table=0,udp,in_port=2"),
        (" cookie=0x7, actions=drop", "cookie=0x7/-1,table=0"),
        (" priority=0 actions=drop", "cookie=0/-1,table=0,priority=0"),
        (" cookie=0x9, priority=0 actions=NORMAL", "cookie=0x9/-1,table=0,priority=0"),
        (" actions=NORMAL", "cookie=0/-1,table=0"),
    ],
)  # fmt: skip
def test_each_flow_of_others_is_told_with_what_removes_it(line: str, match: str) -> None:
    ours, (foreign,) = parse_flows("pw-nic0", line, "unix:/run/pw-nic0.mgmt")
    assert ours == [] and foreign.on == "pw-nic0" and foreign.text == f"flow {line.strip()}"
    assert foreign.remedy == (
        f"ovs-ofctl -O OpenFlow13 --strict del-flows unix:/run/pw-nic0.mgmt {match}"
    )


def test_groups_and_meters_are_told_with_what_removes_them() -> None:
    text = (
        "OFPST_GROUP_DESC reply (OF1.3) (xid=0x2):\n"
        " group_id=5,type=all,bucket=actions=output:1,bucket=actions=group:6\n"
        "OFPST_METER_CONFIG reply (OF1.3) (xid=0x2):\n"
        "meter=3 kbps bands=\ntype=drop rate=1000\n\nmeter=controller pktps stats bands=\n"
    )
    found = openflow.parse_groups_and_meters("pw-nic0", text, "unix:m")
    assert remedies(found) == {
        "ovs-ofctl -O OpenFlow13 del-groups unix:m group_id=5": ("pw-nic0", "other flows"),
        "ovs-ofctl -O OpenFlow13 del-meters unix:m meter=3": ("pw-nic0", "other flows"),
        "ovs-ofctl -O OpenFlow13 del-meters unix:m meter=controller": ("pw-nic0", "other flows"),
    }


def test_a_bridge_without_a_flow_for_all_packets_is_found() -> None:
    ours = (
        " cookie=0x5057000000000000, priority=20480,ip,in_port=LOCAL,nw_dst=10.7.0.2 actions=drop"
    )
    for line in (
        "priority=0 actions=NORMAL", " cookie=0x9, reset_counts priority=0 actions=drop",
        "idle_timeout=60, priority=0 actions=NORMAL",
    ):  # fmt: skip
        assert openflow._forwards(f"{ours}\n{line}\n")
    for line in ("", "priority=0,arp actions=NORMAL", "table=3, priority=0 actions=NORMAL"):
        assert not openflow._forwards(f"{ours}\n{line}\n")


def test_the_flow_of_a_new_bridge_is_open_vswitchs_own() -> None:
    header = "OFPST_FLOW reply (OF1.3) (xid=0x2):\n"
    for cookie in ("", "cookie=0x0, "):
        assert parse_flows("b", f"{header} {cookie}priority=0 actions=NORMAL") == ([], [])


class Row:
    """A row as the IDL shows it."""

    external_ids: dict[str, str]

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)


OURS = {"placewire": "plan"}


class Rows:
    """A database of one bridge of ours over nic0, with something of others on it everywhere."""

    def __init__(self) -> None:
        foreign_queue = Row(uuid="q-7", external_ids={}, other_config={})
        queue = Row(uuid="q-0", external_ids=OURS, other_config={})
        qos = Row(uuid="qos-1", type="linux-htb", external_ids=OURS, other_config={"max-rate": "9"},
                  queues={0: queue, 7: foreign_queue})  # fmt: skip
        ports = [Row(name="pw-nic0", external_ids=OURS, qos=[], interfaces=[]),
                 Row(name="nic0", external_ids=OURS, qos=[qos], interfaces=[]),
                 Row(name="op0", external_ids={}, qos=[], interfaces=[])]  # fmt: skip
        bridge = Row(name="pw-nic0", external_ids={**OURS, "placewire-nic": "nic0"}, ports=ports,
                     datapath_type="netdev", controller=[Row(target="tcp:127.0.0.1")],
                     mirrors=[], sflow=[Row()], uuid="b-1")  # fmt: skip
        self._tables = {"Bridge": [bridge], "Port": ports, "Interface": [], "QoS": [qos],
                        "Open_vSwitch": [Row(other_config={"hw-offload": "true"})],
                        "Sets": [Row(uuid="s-1", bridge=bridge), Row(uuid="s-2", bridge=Row())],
                        "Maps": [Row(uuid="m-1", of={7: bridge})]}  # fmt: skip
        self.references = References(
            features=(("controller", "Controller"), ("mirrors", "Mirror"), ("sflow", "sFlow")),
            referring=(("Sets", "bridge"), ("Maps", "of")),
        )

    def rows(self, table: str) -> list[Row]:
        return self._tables[table]


def test_what_others_put_into_the_rows_of_a_bridge_of_ours() -> None:
    switch = SwitchView(Rows())  # type: ignore[arg-type]
    assert remedies(switch.foreign_on_ours()) == {
        "ovs-vsctl clear bridge pw-nic0 controller": ("pw-nic0", "features"),
        "ovs-vsctl clear bridge pw-nic0 sflow": ("pw-nic0", "features"),
        "ovs-vsctl del-port pw-nic0 op0": ("pw-nic0", "ports"),
        "ovs-vsctl destroy Sets s-1": ("pw-nic0", "features"),
        "ovs-vsctl destroy Maps m-1": ("pw-nic0", "features"),
        "ovs-vsctl remove qos qos-1 queues 7": ("nic0 queue 7", "queues"),
    }
    assert [queue.queue_id for queue in switch.shapers_and_queues()[1]] == [0]
    assert switch.queue_ids() == {"nic0": {0, 7}} and switch.offloads


def test_names_in_the_database_are_quoted_in_commands() -> None:
    rows: Any = Rows()
    (bridge,) = rows.rows("Bridge")
    bridge.name = "pw-a;reboot"
    rows.rows("Bridge").append(Row(name="pw-b&reboot", external_ids={}, ports=[]))
    rows.rows("Port")[0].name = "pw-a;reboot"
    rows.rows("Port")[0].tag, rows.rows("Port")[0].trunks = [7], []
    rows.rows("Port")[0].vlan_mode = []
    rows.rows("Port")[2].name = "op 0;$(reboot)"
    theirs = Row(type="linux-htb", external_ids={}, queues={}, uuid="qos-3")
    rows.rows("Port")[0].qos = [theirs]
    (qos,) = rows.rows("Port")[1].qos
    qos.external_ids = {**OURS, "placewire-nic": "nic0"}
    rows.rows("Port").append(Row(name="e`reboot`", external_ids={}, qos=[qos], interfaces=[]))
    for port in rows.rows("Port")[1:]:
        port.tag = port.trunks = port.vlan_mode = []
    switch = SwitchView(rows)
    found = [entry.remedy for entry in (*switch.foreign_bridges(), *switch.foreign_on_ours())]
    assert {tuple(shlex.split(remedy)) for remedy in found} >= {
        ("ovs-vsctl", "del-br", "pw-b&reboot"),
        ("ovs-vsctl", "clear", "bridge", "pw-a;reboot", "controller"),
        ("ovs-vsctl", "del-port", "pw-a;reboot", "op 0;$(reboot)"),
        ("ovs-vsctl", "clear", "port", "pw-a;reboot", "qos"),
        ("ovs-vsctl", "clear", "port", "e`reboot`", "qos"),
    }
    assert all("'" in remedy for remedy in found if "reboot" in remedy)
    (told,) = switch.vlan_problems()
    assert "clear port 'pw-a;reboot' tag" in told


def test_what_of_others_uses_a_qos_and_a_queue_of_ours_is_none_of_ours() -> None:
    rows = Rows()
    port: Any = rows.rows("Port")[1]
    (qos,) = port.qos
    qos.external_ids = {**OURS, "placewire-nic": "nic0"}
    theirs = Row(uuid="qos-2", external_ids={}, queues={1: qos.queues[0]})
    qos.queues[9] = qos.queues[0]
    qos.queues[0].external_ids = {**qos.external_ids, "placewire-queue": "0"}
    rows.rows("QoS").append(theirs)
    rows.rows("Port").append(Row(name="eth5", external_ids={}, qos=[qos], interfaces=[]))
    switch = SwitchView(rows)  # type: ignore[arg-type]
    found = [f for f in switch.foreign_on_ours() if f.on.startswith("nic0")]
    assert remedies(found) == {
        "ovs-vsctl remove qos qos-1 queues 7": ("nic0 queue 7", "queues"),
        "ovs-vsctl remove qos qos-1 queues 9": ("nic0 queue 9", "queues"),
        "ovs-vsctl remove qos qos-2 queues 1": ("nic0 queue 0", USERS),
        "ovs-vsctl clear port eth5 qos": ("nic0", USERS),
    }
    shapers, queues = switch.shapers_and_queues()
    assert [s.nic for s in shapers] == ["nic0"] and [q.queue_id for q in queues] == [0]


ODD_NUMBERS = st.one_of(
    st.text(max_size=30),
    st.integers(-(2**64), 2**65).map(str),
    st.text("0123456789²٣Ⅷ", min_size=1, max_size=25),
    st.sampled_from([str(2**63), "9" * 5000, "1e9", " 7", "7 ", "+7", "7\n", "1_000"]),
)


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(ODD_NUMBERS, min_size=4, max_size=4), purpose=st.text())
def test_rates_that_others_wrote_are_read_whatever_they_are(texts: list[str], purpose: str) -> None:
    rows: Any = Rows()
    (qos,) = rows.rows("QoS")
    qos.other_config = {"max-rate": texts[0]}
    config = zip(("min-rate", "max-rate", "burst"), texts[1:], strict=True)
    qos.queues[0].other_config = dict(config)
    qos.queues[0].external_ids = {**OURS, "placewire-purpose": purpose}
    (shaper,), (queue,) = SwitchView(rows).shapers_and_queues()
    read = (
        shaper.max_bits_per_second, queue.min_bits_per_second, queue.max_bits_per_second,
        queue.burst_bits,
    )  # fmt: skip
    for text, number in zip(texts, read, strict=True):
        assert number == 0 or str(number) == text.lstrip("0")


def test_the_two_ports_of_a_bridge_of_ours_are_ours_without_their_marks() -> None:
    rows = Rows()
    for port in rows.rows("Port"):
        port.external_ids = {}
    told = SwitchView(rows).foreign_on_ours()  # type: ignore[arg-type]
    assert [f.text for f in told if f.collection == PORTS] == ["port op0"]


def test_the_installed_open_vswitch_says_what_others_may_have_on_a_bridge() -> None:
    schema = json.loads(Path("/usr/share/openvswitch/vswitch.ovsschema").read_text())
    found = references_of(schema)
    features = {column for column, _ in found.features}
    assert {"controller", "mirrors", "netflow", "sflow", "ipfix", "flow_tables"} <= features
    assert "ports" not in features
    assert ("Flow_Sample_Collector_Set", "bridge") in found.referring
    assert "Open_vSwitch" not in {table for table, _ in found.referring}


SPOILT_MARKS = {
    "no JSON": "{",
    "a file of root's": '{"nic": "nic0", "addresses": [], "sysctls": '
                        '[{"name": "net./etc/passwd", "value": "evil::0:0::/root:/bin/sh"}]}',
    "another NIC's sysctl": '{"nic": "nic0", "addresses": [], "sysctls": '
                            '[{"name": "net.ipv4.conf.mgmt.rp_filter", "value": "0"}]}',
    "no address": '{"nic": "nic0", "addresses": [""]}',
    "no address of the plan": '{"nic": "nic0", "addresses": [], "given": ["mgmt"]}',
}  # fmt: skip


@pytest.mark.parametrize("text", SPOILT_MARKS.values(), ids=SPOILT_MARKS)
def test_a_spoilt_mark_is_left_out(text: str) -> None:
    rows = Rows()
    rows.rows("Bridge")[0].external_ids["placewire-held"] = text
    assert SwitchView(rows).held() == []  # type: ignore[arg-type]


def test_a_mark_is_of_the_bridge_that_it_stands_on() -> None:
    rows = Rows()
    mark = TakenOver(nic="nic0", addresses=("10.7.0.1/24",), bridge="pw-nic9")
    rows.rows("Bridge")[0].external_ids["placewire-held"] = mark.model_dump_json()
    (held,) = SwitchView(rows).held()  # type: ignore[arg-type]
    assert held == mark.model_copy(update={"bridge": "pw-nic0"})


def test_the_tables_name_what_the_drivers_find() -> None:
    """Whoever reads reconcile/foreign_kinds.py sees all that is looked for."""
    assert len(set(ON_BRIDGES)) == len(ON_BRIDGES) and len(set(ON_QUEUES)) == len(ON_QUEUES)
    kinds = {"filters", "classes", "queueing disciplines", "classifiers", "queues", USERS}
    assert kinds == set(ON_QUEUES)
    assert DISCIPLINES in ON_BRIDGES and {"flows", "ports"} <= set(ON_BRIDGES)


@pytest.mark.parametrize("datapath", ["netdev", "system"])
def test_only_what_our_switch_made_promiscuous_is_set_otherwise(
    said: dict[str, str], datapath: str
) -> None:
    facts = nic0(said, [of_nic0("10.7.0.1")], GATEWAY)
    desired = desired_state(1, nics=("nic0",))
    (bridge,) = desired.bridges
    update = {"bridges": (bridge.model_copy(update={"datapath": datapath}),)}
    (held,) = extended(
        desired.model_copy(update=update), ObservedState(nics=(facts,)), Ledger()
    ).nics
    sets_it = ["ip", "link", "set", "nic0", "promisc", "off"] in nic_moves._back(
        NicStep("back", "", held)
    )
    assert sets_it == (datapath == "netdev")


def test_a_nic_that_was_exchanged_since_it_was_read_gets_nothing(said: dict[str, str]) -> None:
    facts = nic0(said, [of_nic0("10.7.0.1")], GATEWAY)
    (held,) = extended(
        desired_state(1, nics=("nic0",)), ObservedState(nics=(facts,)), Ledger()
    ).nics
    another = held.model_copy(update={"mac": "02:00:00:00:99:01"})
    assert nic_moves._back(NicStep("back", "", held))
    with pytest.raises(EffectError, match=f"nic0 is another one now, with MAC {held.mac}"):
        nic_moves._back(NicStep("back", "", another))
