"""Finds what of others is on the interfaces of our bridges, and would go with them.

Neither Linux nor Open vSwitch keeps anybody from removing an interface that others use. So whoever
removes a bridge, or an address of it, asks here once more right before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from itertools import pairwise
from shlex import quote
from typing import Any, Literal

from placewire.agent.contract.entries import TABLES, Address
from placewire.agent.contract.state import ForeignEntry
from placewire.agent.drivers.address_words import identity_of
from placewire.agent.drivers.interfaces import RECEIVING, InterfaceView
from placewire.agent.drivers.routes import is_over
from placewire.agent.reconcile.canonical import prefix
from placewire.agent.reconcile.command_words import quoted
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.foreign_kinds import (
    DISCIPLINES,
    INTERFACES,
    NEIGHBOURS,
    NEXTHOPS,
    OTHER_ROUTES,
)
from placewire.agent.reconcile.goes_with import goes_with_address
from placewire.agent.reconcile.route_identity import identities, identity, without_sources

# Newer versions of iproute2 show one of these protocols (linux/if_addr.h: of the loopback, of a
# router's advertisement, link-local) for an address that the kernel made by itself; only such an
# address has one of these flags.
_KERNELS_PROTOCOLS = ("0x1", "0x2", "0x3")
_KERNELS_FLAGS = ("mngtmpaddr", "temporary", "stable-privacy")
_SCOPE_LINK = "253"
_OUR_TABLES = frozenset(map(str, TABLES))


def read_on_bridges(
    view: InterfaceView, bridge: str, own: Collection[str], *, offloads: bool
) -> list[ForeignEntry]:
    """Returns the objects of others on this interface, but for those in Open vSwitch's database and
    its flows.

    own: the addresses (each with its length) and routes (as `ip route` prints them) that are ours
    or were the NIC's. offloads: whether Open vSwitch offloads flows to hardware.
    """
    ours = identities(own) | without_sources(own)
    return [
        *_addresses(bridge, view.address_entries(bridge), own),
        *(_route(r, bridge) for r in view.foreign_routes(bridge) if identity(r) not in ours),
        *(_route(route, bridge) for route in view.local_routes if is_over(route, bridge)),
        *_neighbours(bridge, "permanent", view.permanent_neighbours),
        *_neighbours(bridge, "proxy", view.proxied),
        *_nexthops(bridge, view.nexthops(bridge)),
        *_above(bridge, view.above(bridge)),
        *_as_port(bridge, view.master(bridge)),
        *_elsewhere(bridge, view.taken_link_layers(bridge)),
        *_disciplines(bridge, view, offloads=offloads),
    ]


def require_nothing(found: Iterable[ForeignEntry]) -> None:
    """Raises EffectError where others have something on what is about to be removed."""
    texts = [
        f"{f.text} would go with it, and is not ours{f' ({f.remedy})' if f.remedy else ''}"
        for f in found
    ]
    if texts:
        raise EffectError(f"nothing is removed: {'; '.join(texts)}; take that off first")


def require_alone(address: Address, own: Collection[str], going: Collection[Address] = ()) -> None:
    """Raises EffectError where the kernel would remove something of others with this address.
    going: all addresses that go together with it, whatever their interface."""
    view, leaving = InterfaceView(), {a.address for a in going if a.interface == address.interface}
    own = {address.address, *own}
    there = read_on_bridges(view, address.interface, own, offloads=True)
    host = address.address.split("/")[0]
    others = (name for name in view.names if name != address.interface)
    if any(host == entry["local"] for name in others for entry in view.address_entries(name)):
        elsewhere = []  # A route with this source stays as long as any interface has the address.
    else:
        ours = identities(own) | without_sources(own)
        elsewhere = [_route(r, "") for r in view.all_foreign_routes if identity(r) not in ours]
    left = {
        f"{entry['local']}/{entry['prefixlen']}"
        for entry in view.address_entries(address.interface)
        if entry["family"] == "inet"
    } - {address.address, *leaving}
    require_nothing(goes_with_address(address, [*there, *elsewhere], is_last=not left))


def _addresses(
    bridge: str, entries: Sequence[Mapping[str, Any]], own: Collection[str]
) -> Iterator[ForeignEntry]:
    for entry in entries:
        address = f"{entry['local']}/{entry['prefixlen']}"
        if address not in own and not made_by_kernel(entry):
            yield ForeignEntry(
                collection="addresses",
                key=f"{bridge} {address}",
                text=f"address {address} of {bridge}",
                on=bridge,
                remedy=f"ip address del {' '.join(identity_of(entry))} dev {quote(bridge)}",
            )


def made_by_kernel(entry: Mapping[str, Any]) -> bool:
    """Whether the kernel made this IPv6 address by itself: a link-local one of an interface that is
    up, or one that it made of a router's advertisement. entry: as `ip -N -j address` shows it."""
    if entry["family"] != "inet6":
        return False
    if entry.get("protocol") in _KERNELS_PROTOCOLS or any(map(entry.get, _KERNELS_FLAGS)):
        return True
    # Made of a MAC address (RFC 4291, appendix A).
    of_mac = IPv6Address(entry["local"]).packed[11:13] == b"\xff\xfe"
    return entry["scope"] == _SCOPE_LINK and of_mac


def _route(route: str, on: str) -> ForeignEntry:
    """In one of our tables, it is in the place of a route of ours, and has the key of that."""
    place = _place_in_our_tables(route)
    return ForeignEntry(
        collection="routes" if place else OTHER_ROUTES,
        key=place or route,
        text=f"route {route}",
        on=on,
        remedy=f"ip route del {quoted(route)}",
    )


def _place_in_our_tables(route: str) -> str:
    """The key; "" where the route is in another table."""
    words = route.split()
    # An interface may be called `table`.
    table = dict(pairwise(words)).get("table", "")
    if table in _OUR_TABLES:
        for word in words[:2]:  # The first may be a type of route.
            try:
                return f"table {table} {prefix(word)}"
            except ValueError:
                continue
    return ""


def _neighbours(
    bridge: str, kind: Literal["permanent", "proxy"], entries: Iterable[Mapping[str, Any]]
) -> Iterator[ForeignEntry]:
    for entry in entries:
        if entry.get("dev") == bridge:
            named = f"{'proxy ' if kind == 'proxy' else ''}{entry['dst']}"
            yield ForeignEntry(
                collection=NEIGHBOURS,
                key=f"{bridge} {named}",
                text=f"{kind} neighbour {entry['dst']} of {bridge}",
                on=bridge,
                remedy=f"ip neigh del {named} dev {quote(bridge)}",
            )


def _nexthops(bridge: str, names: Iterable[str]) -> Iterator[ForeignEntry]:
    for name in names:
        _, number, *_ = name.split()
        yield ForeignEntry(
            collection=NEXTHOPS,
            key=f"{bridge} {name}",
            text=f"nexthop object {name}",
            on=bridge,
            remedy=f"ip nexthop del id {number}",
        )


def _above(bridge: str, names: Iterable[str]) -> Iterator[ForeignEntry]:
    for name in names:
        yield ForeignEntry(
            collection=INTERFACES,
            key=name,
            text=f"interface {name}, which is made on {bridge}",
            on=bridge,
            remedy=f"ip link del {quote(name)}",
        )


def _as_port(bridge: str, master: str) -> Iterator[ForeignEntry]:
    if master:
        yield ForeignEntry(
            collection=INTERFACES,
            key=f"{master} over {bridge}",
            text=f"the port {bridge} of {master}",
            on=bridge,
            remedy=f"ip link set {quote(bridge)} nomaster",
        )


def _elsewhere(bridge: str, link_layers: Iterable[str]) -> Iterator[ForeignEntry]:
    for mac in link_layers:
        yield ForeignEntry(
            collection=INTERFACES,
            key=f"{bridge} {mac}",
            text=f"what has the link-layer address {mac} on {bridge} (as a macvlan or ipvlan in "
            "another network namespace)",
            on=bridge,
        )


def _disciplines(bridge: str, view: InterfaceView, *, offloads: bool) -> Iterator[ForeignEntry]:
    for one in view.disciplines(bridge):
        # Open vSwitch itself makes such a discipline where it offloads flows to hardware.
        receives = one.kind in RECEIVING
        if not one.parent or (receives and not offloads):
            yield ForeignEntry(
                collection=DISCIPLINES,
                key=f"{bridge} {one.handle}",
                text=f"{one.kind} queueing discipline {one.handle} of {bridge}",
                on=bridge,
                remedy=f"tc qdisc del dev {quote(bridge)} {one.kind if receives else 'root'}",
            )
