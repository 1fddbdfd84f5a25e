"""Says which objects of others the kernel removes where our addresses leave an interface. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Interface
from shlex import quote

from placewire.agent.contract.entries import Address
from placewire.agent.contract.state import ForeignEntry, NicFacts, TakenOver
from placewire.agent.reconcile.command_words import quoted
from placewire.agent.reconcile.foreign_kinds import NEIGHBOURS, OTHER_ROUTES
from placewire.agent.reconcile.route_identity import identities, identity, is_of_v6


def goes_with_address(
    address: Address, foreign: Iterable[ForeignEntry], *, is_last: bool
) -> Iterator[ForeignEntry]:
    """Yields what the kernel removes together with this address: a route that has it as its source,
    and an address of the same subnet that came later. With the last IPv4 address of an interface
    go all routes and neighbours of IPv4 there."""
    network, source = IPv4Interface(address.address).network, address.address.split("/")[0]
    for entry in foreign:
        held = entry.key.removeprefix(f"{address.interface} ")
        there = is_last and entry.on == address.interface
        if entry.collection in ("routes", OTHER_ROUTES):
            if (there and not is_of_v6(entry.key)) or f" src {source} " in f"{entry.text} ":
                yield entry
        elif entry.collection == NEIGHBOURS:
            if there and ":" not in held:
                yield entry
        elif (
            entry.collection == "addresses"
            and entry.on == address.interface
            and ":" not in held
            and IPv4Interface(held).network == network
        ):
            yield entry


def goes_with_move(held: TakenOver, nic: NicFacts) -> Iterator[ForeignEntry]:
    """Yields the objects of others on the NIC that the kernel removes where the addresses of `held`
    leave it: later addresses of the same subnet, and with the last IPv4 address all routes and
    neighbours."""
    there = [address for address in nic.addresses if ":" not in address]
    moved = [a for a in there if a in {address.split()[0] for address in held.addresses}]
    for at, address in enumerate(there):
        if address not in moved and any(
            _same_subnet(former, address) for former in there[:at] if former in moved
        ):
            yield ForeignEntry(
                collection="addresses",
                key=f"{nic.name} {address}",
                text=f"address {address}",
                on=nic.name,
                remedy=f"ip address del {address} dev {quote(nic.name)}",
            )
    if not moved or len(moved) < len(there):
        return
    own = identities(held.routes)
    for route in nic.routes:
        if is_of_v6(route) or identity(route) in own:
            continue
        if not any(_is_made_with(a, route) for a in moved):
            yield ForeignEntry(
                collection=OTHER_ROUTES,
                key=route,
                text=f"route {route}",
                on=nic.name,
                remedy=f"ip route del {quoted(route)}",
            )
    for entry in nic.lost_with_addresses:
        kind, _, words = entry.partition(" ")
        if is_of_v6(words.removeprefix("proxy ")):
            continue
        yield ForeignEntry(
            collection=NEIGHBOURS,
            key=f"{nic.name} {entry}",
            text=f"entry `{entry}`",
            on=nic.name,
            remedy=f"ip {kind} del {quoted(words)}",
        )


def _same_subnet(one: str, other: str) -> bool:
    return IPv4Interface(one).network == IPv4Interface(other).network


def _is_made_with(address: str, route: str) -> bool:
    """Whether it is the subnet's own route of this address, whoever made it."""
    own = IPv4Interface(address)
    return identity(route).place.destination == str(own.network) and (
        identity(route).source == str(own.ip)
    )
