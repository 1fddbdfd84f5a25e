"""Refusals about bridges, the NICs that they take over, addresses and sysctls."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Interface, IPv4Network

from placewire.agent.contract.entries import BRIDGE_PREFIX, Address, Bridge
from placewire.agent.contract.state import DesiredState, NicFacts, ObservedState, Refusal

# IFNAMSIZ is 16 with the terminating zero.
LONGEST_INTERFACE_NAME = 15
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_SYSCTL_NAME = re.compile(r"net(\.[A-Za-z0-9_-]+){2,}")


def bridge_refusals(
    wanted: DesiredState,
    observed: ObservedState,
    datapath: str,
    protected: Collection[str],
    taken: Collection[str],
) -> list[Refusal]:
    """taken: NICs that are taken over already, though somebody may have removed their bridge."""
    facts = {nic.name: nic for nic in observed.nics}
    ours = {bridge.name: bridge for bridge in observed.bridges}
    found = []
    for bridge in wanted.bridges:
        found += _names(bridge, observed)
        current = ours.get(bridge.name)
        if current is not None and current.nic and current.nic != bridge.nic:
            found.append(
                _refuse(
                    f"bridge {bridge.name}", f"already has NIC {current.nic}", "destroy it first"
                )
            )
        if bridge.datapath != datapath:
            found.append(
                _refuse(
                    f"bridge {bridge.name}",
                    f"wants the {bridge.datapath} datapath, this server has {datapath}",
                    "compile the plan for this server's capabilities",
                )
            )
        nic = facts.get(bridge.nic)
        if nic is None:
            known = ", ".join(sorted(facts)) or "none"
            found.append(
                _refuse(f"NIC {bridge.nic}", f"does not exist here (there is {known})", "fix it")
            )
        elif bridge.nic in protected:
            found.append(
                _refuse(
                    f"NIC {bridge.nic}",
                    "is protected in this agent's configuration",
                    "use another NIC, or take it off the protected list",
                )
            )
        else:
            found += _nic(wanted, bridge, nic, taken)
    twice = [b for b in wanted.bridges if sum(o.nic == b.nic for o in wanted.bridges) > 1]
    found += [
        _refuse(f"NIC {b.nic}", "is wanted in two bridges", "one bridge per NIC") for b in twice
    ]
    return found


def _names(bridge: Bridge, observed: ObservedState) -> list[Refusal]:
    found = []
    if len(bridge.name) > LONGEST_INTERFACE_NAME or not _INTERFACE_NAME.fullmatch(bridge.name):
        found.append(
            _refuse(
                f"bridge {bridge.name}",
                f"its name has more than {LONGEST_INTERFACE_NAME} or forbidden characters",
                "rename the NIC, or choose a shorter bridge name",
            )
        )
    if not bridge.name.startswith(BRIDGE_PREFIX):
        found.append(
            _refuse(f"bridge {bridge.name}", f"does not start with {BRIDGE_PREFIX}", "rename it")
        )
    if any(f.collection == "bridges" and f.key == bridge.name for f in observed.foreign):
        found.append(
            _refuse(
                f"bridge {bridge.name}",
                "exists, and is not ours",
                "remove or rename that interface",
            )
        )
    return found


def _nic(
    wanted: DesiredState, bridge: Bridge, nic: NicFacts, taken: Collection[str]
) -> list[Refusal]:
    where = f"NIC {nic.name}"
    if nic.bridge is not None and nic.bridge != bridge.name:
        return [
            _refuse(where, f"is already a port of {nic.bridge}", "take it out of that bridge first")
        ]
    found = []
    own = nic.left_by_switch and nic.name in taken
    if nic.bridge is None and nic.root_qdisc is not None and not own:
        found.append(
            _refuse(
                where,
                f"has a {nic.root_qdisc} queueing discipline that someone set",
                f"remove it (tc qdisc del dev {nic.name} root)",
            )
        )
    if nic.carrier is False:
        found.append(
            _refuse(where, "is up and has no carrier", "look at its cable and its switch port")
        )
    found += _mtu(bridge, nic)
    if (nic.addresses or nic.routes) and nic.name not in wanted.take_over:
        held = ", ".join(nic.addresses or nic.routes)
        found.append(
            _refuse(where, f"holds {held}", "say take_over: true for it in the plan, or free it")
        )
    on_bridge = {a.address for a in wanted.addresses if a.interface == bridge.name}
    for address in nic.addresses:
        if ":" in address:
            found.append(_refuse(where, f"holds IPv6 address {address}", "IPv4 NICs only"))
        elif address not in on_bridge:
            found.append(
                _refuse(
                    where,
                    f"holds {address}, which the plan does not give it",
                    "put that address into the plan, or take it off the NIC",
                )
            )
    found += [
        _refuse(where, f"got {command.split()[0]} for a limited time (DHCP)", "give it for good")
        for command in nic.address_commands
        if "dynamic" in command.split()
    ]
    found += [
        _refuse(where, f"is part of the multipath route {route!r}", "remove that route first")
        for route in nic.routes
        if "nexthop" in route.split()
    ]
    return found


def _mtu(bridge: Bridge, nic: NicFacts) -> list[Refusal]:
    if bridge.mtu_bytes <= nic.mtu_bytes:
        return []
    where, wanted = f"NIC {nic.name}", bridge.mtu_bytes
    if nic.largest_mtu_bytes is not None and wanted > nic.largest_mtu_bytes:
        return [
            _refuse(
                where,
                f"carries frames of MTU {nic.largest_mtu_bytes} at most (driver "
                f"{nic.driver or 'unknown'}), its bridge wants {wanted}",
                f"plan the rail with mtu: {nic.mtu_bytes}",
            )
        ]
    return [
        _refuse(
            where,
            f"has MTU {nic.mtu_bytes}, its bridge wants {wanted}",
            f"`ip link set {nic.name} mtu {wanted}` on this server, if the switch carries such "
            f"frames (we change no NIC's MTU); or plan the rail with mtu: {nic.mtu_bytes}",
        )
    ]


def address_refusals(
    wanted: DesiredState, observed: ObservedState, protected: Collection[str]
) -> list[Refusal]:
    bridges = {bridge.name for bridge in wanted.bridges}
    kept = [
        (nic.name, IPv4Interface(address))
        for nic in observed.nics
        if nic.name in protected
        for address in nic.addresses
        if ":" not in address
    ]
    found = []
    seen: dict[IPv4Network, Address] = {}
    for entry in wanted.addresses:
        where = f"address {entry.address}"
        try:
            address = IPv4Interface(entry.address)
        except ValueError:
            found.append(_refuse(where, "is not an IPv4 address with a length", "write a.b.c.d/24"))
            continue
        if entry.interface not in bridges:
            found.append(
                _refuse(where, f"is for {entry.interface}, no bridge of this state", "fix it")
            )
        found += [
            _refuse(
                where,
                f"overlaps with {other} on the protected interface {name}",
                "use a subnet of its own for every rail",
            )
            for name, other in kept
            if address.network.overlaps(other.network)
        ]
        other = seen.setdefault(address.network, entry)
        if other.interface != entry.interface:
            found.append(
                _refuse(
                    where,
                    f"is in the same subnet as {other.address} on {other.interface}",
                    "use a subnet of its own for every rail",
                )
            )
    return found


def sysctl_refusals(wanted: DesiredState) -> list[Refusal]:
    return [
        _refuse(f"sysctl {entry.name}", "is not a network setting", "only net.* can be set")
        for entry in wanted.sysctls
        if not _SYSCTL_NAME.fullmatch(entry.name)
    ]


def _refuse(where: str, what: str, remedy: str) -> Refusal:
    return Refusal(what=what, where=where, remedy=remedy)
