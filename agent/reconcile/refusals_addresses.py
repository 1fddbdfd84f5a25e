"""Refusals about addresses, and about subnets that something else on this server uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from placewire.agent.contract.entries import Address
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal, refuse

_OWN_SUBNET = "use a subnet of its own for every rail"


def address_refusals(
    wanted: DesiredState,
    observed: ObservedState,
    ledger: Ledger,
    protected_addresses: Collection[str],
) -> Iterator[Refusal]:
    """Each interface leads the traffic of its whole subnet to itself. So a subnet may overlap none
    of an interface that is not ours, nor hold the way to the controller."""
    bridges = {bridge.name for bridge in wanted.bridges}
    theirs = list(_of_others(wanted, observed, ledger))
    ways = _ways(protected_addresses, theirs, wanted, observed)
    seen: dict[IPv4Network, Address] = {}
    for entry in wanted.addresses:
        where = f"address {entry.address}"
        try:
            address = IPv4Interface(entry.address)
        except ValueError:
            yield refuse(where, "is not an IPv4 address with a length", "write a.b.c.d/24")
            continue
        if entry.interface not in bridges:
            yield refuse(
                where,
                f"is for {entry.interface}, no bridge of this state",
                "give the address to a bridge of this state",
            )
        for interface, other in theirs:
            if interface != entry.interface and address.network.overlaps(other.network):
                yield refuse(where, f"overlaps with {other} of {interface}", _OWN_SUBNET)
        for way in ways:
            if way in address.network:
                what = f"overlaps with {way}, through which this server reaches its controller"
                yield refuse(where, what, _OWN_SUBNET)
        first = seen.setdefault(address.network, entry)
        if first.interface != entry.interface:
            yield refuse(
                where,
                f"is in the same subnet as {first.address} on {first.interface}",
                _OWN_SUBNET,
            )


def _of_others(
    wanted: DesiredState, observed: ObservedState, ledger: Ledger
) -> Iterator[tuple[str, IPv4Interface]]:
    """(interface, address) of all that stays, or comes back, beside `wanted`. Its NICs' own move to
    its bridges, and those that we gave to bridges are ours to move."""
    nics = {bridge.nic for bridge in wanted.bridges}
    ours = nics | {bridge.name for bridge in (*wanted.bridges, *observed.bridges)}
    held = [(nic.name, nic.addresses) for nic in observed.nics if nic.name not in ours]
    held += [(taken.nic, taken.addresses) for taken in ledger.nics if taken.nic not in nics]
    held += [(at.interface, (at.address,)) for at in observed.addresses_elsewhere]
    held += [
        (entry.on, (entry.key.removeprefix(f"{entry.on} "),))
        for entry in observed.foreign
        if entry.collection == "addresses" and entry.on
    ]
    found = ((name, address.split()[0]) for name, addresses in held for address in addresses)
    for name, address in dict.fromkeys(found):
        if ":" not in address:
            yield name, IPv4Interface(address)


def _ways(
    protected_addresses: Collection[str],
    theirs: Collection[tuple[str, IPv4Interface]],
    wanted: DesiredState,
    observed: ObservedState,
) -> list[IPv4Address]:
    """The addresses that must keep working and are on no interface that is known here."""
    nics = {bridge.nic for bridge in wanted.bridges}
    known = {str(address.ip) for _, address in theirs}
    known |= {a.address.split("/")[0] for a in observed.addresses}
    known |= {a.split("/")[0] for nic in observed.nics if nic.name in nics for a in nic.addresses}
    return [IPv4Address(address) for address in sorted(set(protected_addresses) - known)]
