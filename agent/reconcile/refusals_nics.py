"""Refusals about bridges, the NICs that they take over, and sysctls."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from shlex import quote

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
from placewire.agent.reconcile.refusals_held import (
    doubled_refusals,
    holding_refusals,
    lost_refusals,
    shared_subnet_refusals,
    source_refusals,
)

_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Kinds of interfaces that pass no frames of a bridge above them: they know only their own address.
_NO_PORTS = ("macvlan", "macvtap", "ipvlan", "ipvtap", "vrf")
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
                yield from source_refusals(nic, observed)
                yield from doubled_refusals(nic)
                yield from shared_subnet_refusals(nic, observed)
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
            f"remove it (tc qdisc del dev {quote(nic.name)} root)",
        )
    if nic.receiving_qdisc is not None and nic.bridge is None and nic.name not in taken:
        yield refuse(
            where,
            f"has {nic.receiving_qdisc} filters that someone set, which Open vSwitch takes off its "
            "ports",
            f"use a NIC without, or remove them (tc qdisc del dev {quote(nic.name)} "
            f"{nic.receiving_qdisc})",
        )
    if nic.bridge is None and nic.name not in taken:
        yield from lost_refusals(nic)
    if nic.carrier is False:
        yield refuse(where, "is up and has no carrier", "look at its cable and its switch port")
    yield from _mtu(bridge, nic)
    if (nic.addresses or nic.routes) and nic.name not in wanted.take_over:
        held = ", ".join(nic.addresses or nic.routes)
        yield refuse(where, f"holds {held}", "say take_over: true for it in the plan, or free it")
    yield from holding_refusals(wanted, bridge, nic)


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
            f"use another NIC, or set it so (ip link set {quote(nic.name)} arp on), if its "
            "network has ARP",
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
            f"`ip link set {quote(nic.name)} mtu {wanted}` on this server, if the switch carries "
            "such frames (Placewire changes no NIC's MTU); or plan the rail with mtu: "
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
