"""Refusals about bridges, the NICs that they take over, and sysctls."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice

from placewire.agent.contract.entries import (
    BRIDGE_PREFIX,
    LONGEST_INTERFACE_NAME,
    Bridge,
)
from placewire.agent.contract.state import (
    DesiredState,
    Ledger,
    NicFacts,
    ObservedState,
    Refusal,
    refuse,
)
from placewire.agent.reconcile.command_words import interfaces_of, is_a_route
from placewire.agent.reconcile.foreign import MOST_NAMED

_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Kinds of interfaces that pass no frames of a bridge above them: they know only their own address.
_NO_PORTS = ("macvlan", "macvtap", "ipvlan", "ipvtap", "vrf")
# Protocols of routes (linux/rtnetlink.h) whose programs withdraw them by themselves: gated, mrt,
# zebra, bird, dnrouted, xorp, ntk, dhcp, keepalived, babel, bgp, isis, ospf, rip, eigrp.
_WITHDRAWN_BY_PROGRAMS = re.compile(r" proto (?:8|10|11|12|13|14|15|16|18|42|186|187|188|189|192) ")
_OWN_SYSCTLS = "set only sysctls of the bridges and NICs of this state"


def bridge_refusals(
    wanted: DesiredState,
    observed: ObservedState,
    datapath: str,
    protected: Collection[str],
    taken: Collection[str],
) -> Iterator[Refusal]:
    """taken: NICs that are taken over already, though somebody may have removed their bridge."""
    facts = {nic.name: nic for nic in observed.nics}
    ours = {bridge.name: bridge for bridge in observed.bridges}
    for bridge in wanted.bridges:
        where = f"bridge {bridge.name}"
        yield from _names(bridge, observed)
        current = ours.get(bridge.name)
        if current is not None and current.nic and current.nic != bridge.nic:
            yield refuse(where, f"already has NIC {current.nic}", "destroy it first")
        if bridge.datapath != datapath:
            yield refuse(
                where,
                f"wants the {bridge.datapath} datapath, this server has {datapath}",
                "compile the plan for this server's capabilities",
            )
        nic = facts.get(bridge.nic)
        if nic is None:
            known = ", ".join(sorted(facts)) or "none"
            yield refuse(
                f"NIC {bridge.nic}",
                f"does not exist here (there is {known})",
                "name a NIC that this server has",
            )
        elif bridge.nic in protected:
            yield refuse(
                f"NIC {bridge.nic}",
                "is protected in this agent's configuration",
                "use another NIC, or take it off the protected list",
            )
        else:
            yield from _nic(wanted, bridge, nic, taken)
            if nic.name not in taken:
                yield from _sources(nic, observed)
                yield from _doubled_routes(nic)
    for bridge in wanted.bridges:
        if sum(other.nic == bridge.nic for other in wanted.bridges) > 1:
            yield refuse(
                f"NIC {bridge.nic}", "is wanted in two bridges", "give each NIC one bridge"
            )


def _names(bridge: Bridge, observed: ObservedState) -> Iterator[Refusal]:
    where = f"bridge {bridge.name}"
    if len(bridge.name) > LONGEST_INTERFACE_NAME or not _INTERFACE_NAME.fullmatch(bridge.name):
        yield refuse(
            where,
            f"its name has more than {LONGEST_INTERFACE_NAME} or forbidden characters",
            "rename the NIC, or choose a shorter bridge name",
        )
    if not bridge.name.startswith(BRIDGE_PREFIX):
        yield refuse(where, f"does not start with {BRIDGE_PREFIX}", "rename it")
    if any(f.collection == "bridges" and f.key == bridge.name for f in observed.foreign):
        yield refuse(where, "exists, and is not ours", "remove or rename that interface")


def _nic(
    wanted: DesiredState, bridge: Bridge, nic: NicFacts, taken: Collection[str]
) -> Iterator[Refusal]:
    where = f"NIC {nic.name}"
    if nic.bridge is not None and nic.bridge != bridge.name:
        yield refuse(
            where, f"is already a port of {nic.bridge}", "take it out of that bridge first"
        )
        return
    if nic.bridge is None:
        yield from _unfit(nic)
    own = nic.left_by_switch and nic.name in taken
    if nic.bridge is None and nic.root_qdisc is not None and not own:
        yield refuse(
            where,
            f"has a {nic.root_qdisc} queueing discipline that someone set",
            f"remove it (tc qdisc del dev {nic.name} root)",
        )
    if nic.receiving_qdisc is not None and nic.bridge is None and nic.name not in taken:
        yield refuse(
            where,
            f"has {nic.receiving_qdisc} filters that someone set, which Open vSwitch takes off its "
            "ports",
            f"use a NIC without, or remove them (tc qdisc del dev {nic.name} "
            f"{nic.receiving_qdisc})",
        )
    if nic.bridge is None and nic.name not in taken:
        yield from _spoilt(nic)
    if nic.carrier is False:
        yield refuse(where, "is up and has no carrier", "look at its cable and its switch port")
    yield from _mtu(bridge, nic)
    if (nic.addresses or nic.routes) and nic.name not in wanted.take_over:
        held = ", ".join(nic.addresses or nic.routes)
        yield refuse(where, f"holds {held}", "say take_over: true for it in the plan, or free it")
    yield from _held(wanted, bridge, nic)


def _spoilt(nic: NicFacts) -> Iterator[Refusal]:
    """Refuses what would be lost, lead to nobody, or come back though its program withdrew it."""
    where = f"NIC {nic.name}"
    for entry in nic.lost_with_addresses:
        kind, _, words = entry.partition(" ")
        yield refuse(
            where,
            f"has the entry `{entry}` that someone set, and the kernel drops it with the last "
            "address of a NIC",
            f"use a NIC without, or remove it (ip {kind} del {words})",
        )
    for route in nic.routes_v6:
        yield refuse(
            where,
            f"has the IPv6 route {route!r}, which would lead to nobody",
            f"use a NIC without, or remove it (ip -6 route del {route})",
        )
    for one in () if nic.up else _lost_when_down(nic):
        yield refuse(
            where,
            f"is down and has the IPv6 {one}, which the kernel drops when an undo sets it down "
            "again",
            f"use a NIC without, set it up (ip link set {nic.name} up), or take that off it",
        )
    withdrawn = (
        route
        for route in nic.routes
        if is_a_route(route) and _WITHDRAWN_BY_PROGRAMS.search(f"{route} ")
    )
    for route in islice(withdrawn, MOST_NAMED):
        yield refuse(
            where,
            f"has the route {route!r} of a routing program, which may withdraw it at any time, and "
            "Placewire would put it back",
            "use a NIC without, or have that program make no routes over this one",
        )
    for nexthop in nic.nexthops:
        yield refuse(
            where,
            f"has the nexthop object `{nexthop}`, and what is sent by it would no longer leave",
            f"use a NIC without, or remove it (ip nexthop del {' '.join(nexthop.split()[:2])})",
        )


def _lost_when_down(nic: NicFacts) -> Iterator[str]:
    """Yields what somebody put on a NIC that is down, and the kernel drops when an undo sets it
    down again. Global addresses are refused whether the NIC is up or not."""
    for one in nic.standing:
        kind, _, what = one.partition(" ")
        if kind in ("address", "neighbour") and ":" in what and what not in nic.addresses:
            yield one


def _unfit(nic: NicFacts) -> Iterator[Refusal]:
    """Refuses what Open vSwitch cannot make a port of, or what carries nothing as one."""
    where = f"NIC {nic.name}"
    if nic.link_type != "ether" or nic.kind in _NO_PORTS:
        what = nic.kind if nic.kind in _NO_PORTS else nic.link_type or "unknown"
        yield refuse(
            where,
            f"has a link of type {what}, which cannot be the port of a bridge",
            "use an Ethernet NIC, for example the one that it is made on",
        )
    elif not nic.resolves_neighbours:
        yield refuse(
            where,
            "finds no neighbours (NOARP or POINTOPOINT), so that its bridge would reach nobody",
            f"use another NIC, or set it so (ip link set {nic.name} arp on), if its network has "
            "ARP",
        )


def _held(wanted: DesiredState, bridge: Bridge, nic: NicFacts) -> Iterator[Refusal]:
    """Refuses addresses and routes that cannot move to the bridge and come back."""
    where = f"NIC {nic.name}"
    on_bridge = {a.address for a in wanted.addresses if a.interface == bridge.name}
    for address in nic.addresses:
        if ":" in address:
            yield refuse(where, f"holds IPv6 address {address}", "use a NIC that has IPv4 only")
        elif address not in on_bridge:
            yield refuse(
                where,
                f"holds {address}, which the plan does not give it",
                "put that address into the plan, or take it off the NIC",
            )
    for command in nic.address_commands:
        if "dynamic" in command.split():
            yield refuse(
                where,
                f"got {command.split()[0]} for a limited time (DHCP)",
                "give the NIC that address for good",
            )
        if "\\" in command:
            yield refuse(
                where,
                f"has the address {command}, whose label cannot be given back: it holds a blank, "
                "a control character, a backslash or a byte that is no UTF-8",
                "give the NIC that address anew without such a label",
            )
    yield from _immovable_routes(nic)


def _doubled_routes(nic: NicFacts) -> Iterator[Refusal]:
    """The kernel uses the first of them, and only it knows which came first."""
    for route in nic.doubled_routes:
        yield refuse(
            f"NIC {nic.name}",
            f"has the route {route!r}, and there is another one of the same destination and "
            "metric: their order could not be given back",
            f"remove one of them, or give it another metric (ip route del {route})",
        )


def _immovable_routes(nic: NicFacts) -> Iterator[Refusal]:
    where = f"NIC {nic.name}"
    for route in nic.routes:
        if "nexthop" in route.split():
            yield refuse(
                where, f"is part of the multipath route {route!r}", "remove that route first"
            )
        elif not is_a_route(route):
            yield refuse(
                where,
                f"has the route {route!r}, which cannot be moved to the bridge and back as it is",
                f"remove that route first (ip route del {route})",
            )
        elif " via inet6 " in route:
            yield refuse(
                where,
                f"has the route {route!r}, whose gateway is IPv6, and our bridges have IPv4 only",
                f"use a NIC without, or remove that route first (ip route del {route})",
            )


def _sources(nic: NicFacts, observed: ObservedState) -> Iterator[Refusal]:
    """Refuses a NIC whose address is the source of a route over another interface: the kernel
    removes such a route when the address leaves the bridge again."""
    hosts = [address.split("/")[0] for address in nic.addresses]
    routes = [(n.name, route) for n in observed.nics if n.name != nic.name for route in n.routes]
    for route in observed.routes_elsewhere:
        routes.append((", ".join(sorted(interfaces_of(route))) or "this server", route))
    for name, route in routes:
        if any(f" src {host} " in f"{route} " for host in hosts):
            yield refuse(
                f"NIC {nic.name}",
                f"has the address from which {name} sends by the route {route!r}; an undo would "
                "lose that route",
                f"remove it, or give it a source of {name}'s own (ip route del {route})",
            )


def _mtu(bridge: Bridge, nic: NicFacts) -> Iterator[Refusal]:
    where, wanted = f"NIC {nic.name}", bridge.mtu_bytes
    if wanted <= nic.mtu_bytes:
        return
    if nic.largest_mtu_bytes is not None and wanted > nic.largest_mtu_bytes:
        yield refuse(
            where,
            f"carries frames of MTU {nic.largest_mtu_bytes} at most (driver "
            f"{nic.driver or 'unknown'}), its bridge wants {wanted}",
            f"plan the rail with mtu: {nic.mtu_bytes}",
        )
    else:
        yield refuse(
            where,
            f"has MTU {nic.mtu_bytes}, its bridge wants {wanted}",
            f"`ip link set {nic.name} mtu {wanted}` on this server, if the switch carries such "
            "frames (Placewire changes no NIC's MTU); or plan the rail with mtu: "
            f"{nic.mtu_bytes}",
        )


def sysctl_refusals(wanted: DesiredState, protected: Collection[str]) -> Iterator[Refusal]:
    """Refuses every sysctl but those of a bridge or NIC of this state. Their names are valid by
    their type."""
    interfaces = {name for bridge in wanted.bridges for name in (bridge.name, bridge.nic)}
    for entry in wanted.sysctls:
        where = f"sysctl {entry.name}"
        if entry.interface in protected:
            yield refuse(
                where,
                f"is of {entry.interface}, which is protected in this agent's configuration",
                _OWN_SYSCTLS,
            )
        elif entry.interface not in interfaces:
            yield refuse(
                where, f"is of {entry.interface}, no bridge or NIC of this state", _OWN_SYSCTLS
            )


def management_refusals(
    wanted: DesiredState,
    observed: ObservedState,
    protected_addresses: Collection[str],
    ways: Collection[str],
) -> Iterator[Refusal]:
    """Refuses a NIC through which the controller is reached. ways: interfaces on the way to it: on
    an unnumbered host they have no address of their own."""
    nics = {bridge.nic for bridge in wanted.bridges}
    for nic in observed.nics:
        where, remedy = f"NIC {nic.name}", "reach the controller over a NIC that is not in the plan"
        carried = [a for a in nic.addresses if a.split("/")[0] in protected_addresses]
        if nic.name in nics and carried:
            what = f"carries {carried[0]}, through which this server reaches its controller"
            yield refuse(where, what, remedy)
        elif nic.name in nics and nic.name in ways:
            yield refuse(where, "is the way by which this server reaches its controller", remedy)


def unknown_way_refusals(
    wanted: DesiredState, ledger: Ledger, unknown_way_to: str
) -> Iterator[Refusal]:
    """Refuses each NIC that is not taken over yet while nobody knows by which one the controller is
    reached. An undo is not refused for it."""
    taken = {nic.nic for nic in ledger.nics}
    for bridge in wanted.bridges if unknown_way_to else ():
        if bridge.nic not in taken:
            yield refuse(
                f"NIC {bridge.nic}",
                f"may be the way by which this server reaches {unknown_way_to}: that has no route, "
                "or its name no address, at the moment",
                "see that this server knows the controller's name (getent hosts) and has a route "
                "to it, then try again",
            )
