"""What others may have on a bridge or on queues of ours, on a MemoryServer: one of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from placewire.agent.contract.entries import FLOW_PRIORITY, TABLE_BASE
from tests.agent.memory_server import FlowRow, Link, MemoryServer, Port, mac


class Thing(NamedTuple):
    """put, take_off: as its owner does it. on: what of ours it goes with. text, remedy: what a
    refusal says of it."""

    put: Callable[[MemoryServer], object]
    take_off: Callable[[MemoryServer], object]
    on: str
    text: str
    remedy: str


def _address(address: str) -> Thing:
    def put(server: MemoryServer) -> None:
        link = server.links["pw-nic0"]
        link.addresses.append(address)
        link.theirs.add(address)

    def take_off(server: MemoryServer) -> None:
        server.remove_address("pw-nic0", address)

    command = f"ip address del {address} dev pw-nic0"
    return Thing(put, take_off, "bridge pw-nic0", f"address {address}", command)


def _route(line: str) -> Thing:
    return Thing(
        lambda server: server.their_routes.append(line),
        lambda server: server.their_routes.remove(line),
        "bridge pw-nic0",
        f"route {line}",
        f"ip route del {line}",
    )


def _flow(priority: int) -> Thing:
    row = FlowRow(False, priority, "10.97.0.1", 0)
    text = f"priority={priority},nw_dst=10.97.0.1"
    return Thing(
        lambda server: server.flows["pw-nic0"].append(row),
        lambda server: server.flows["pw-nic0"].remove(row),
        "bridge pw-nic0",
        f"flow {text}",
        "ovs-ofctl --strict del-flows pw-nic0",
    )


def _put_vlan(server: MemoryServer) -> None:
    server.links["vlan7"] = Link(mac("vlan7"), above="pw-nic0")


def _put_root(server: MemoryServer) -> None:
    server.links["nic0"].without_root()
    server.links["nic0"].root = "tbf queueing discipline 8001:"


THINGS = {
    "address": _address("10.99.0.7/24"),
    "address of our subnet": _address("10.7.0.77/24"),
    "IPv6 address": _address("fd00::7/64"),
    "route": _route("10.60.0.0/16 via 10.7.0.9 dev pw-nic0"),
    "route in our table": _route(f"10.61.0.0/16 dev pw-nic0 table {TABLE_BASE}"),
    "route with our source": _route("10.62.0.0/16 dev pw-nic0 src 10.7.0.1"),
    "route elsewhere with our source": _route("10.62.0.0/16 dev mgmt src 10.7.0.1"),
    "route elsewhere, over lo, with our source": _route("10.62.0.0/16 dev lo src 10.7.0.1"),
    "neighbour": Thing(
        lambda server: server.links["pw-nic0"].neighbours.append("10.7.0.9"),
        lambda server: server.links["pw-nic0"].neighbours.clear(),
        "bridge pw-nic0",
        "neighbour 10.7.0.9",
        "ip neigh del 10.7.0.9 dev pw-nic0",
    ),
    "interface": Thing(
        _put_vlan,
        lambda server: server.remove_link("vlan7"),
        "bridge pw-nic0",
        "interface vlan7",
        "ip link del vlan7",
    ),
    "discipline of the bridge": Thing(
        lambda server: setattr(server.links["pw-nic0"], "root", "tbf queueing discipline 8001:"),
        lambda server: setattr(server.links["pw-nic0"], "root", None),
        "bridge pw-nic0",
        "tbf queueing discipline 8001:",
        "tc qdisc del dev pw-nic0",
    ),
    "flow": _flow(99),
    "flow of our priority": _flow(FLOW_PRIORITY),
    "port": Thing(
        lambda server: server.bridges["pw-nic0"].ports.update(op0=Port("op0", ours=False)),
        lambda server: server.bridges["pw-nic0"].ports.pop("op0"),
        "bridge pw-nic0",
        "port op0",
        "ovs-vsctl del-port pw-nic0 op0",
    ),
    "filter": Thing(
        lambda server: server.links["nic0"].filters.update({5: "u32 filter of preference 5"}),
        lambda server: server.links["nic0"].filters.clear(),
        "NIC nic0",
        "u32 filter of preference 5",
        "tc filter del dev nic0 parent 1: pref 5",
    ),
    "discipline of a class": Thing(
        lambda server: server.links["nic0"].leaves.update({2: "fq_codel queueing discipline 10:"}),
        lambda server: server.links["nic0"].leaves.clear(),
        "NIC nic0",
        "fq_codel queueing discipline 10:",
        "tc qdisc del dev nic0 parent 1:3",
    ),
    "discipline in the place of our HTB": Thing(
        _put_root,
        lambda server: server.links["nic0"].without_root(),
        "NIC nic0",
        "tbf queueing discipline 8001:",
        "tc qdisc del dev nic0 root",
    ),
}
# What is in the place of something of ours, which heals once it is gone.
IN_OUR_PLACE = ("discipline in the place of our HTB",)
