"""Finds which addresses answer ARP through which interface, whatever the routes say.

The kernel asks for us, as in announce.py. An entry that it made is removed again, because it would
lead packets through the wrong NIC.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.contract.measurement import Neighbour
from placewire.agent.drivers.announce import ask, forget
from placewire.agent.reconcile.effects import EffectError

# The kernel asks again after one second, so twice in this time.
_ANSWER_SECONDS = 1.5
_LOOK_SECONDS = 0.05
# linux/neighbour.h
_ANSWERED = 0x02 | 0x04 | 0x08 | 0x10  # reachable, stale, delay, probe
_PERMANENT = 0x80 | 0x40  # permanent, noarp
# Flags of entries that a routing program made, or has the kernel look after.
_LEARNED_ELSEWHERE, _MANAGED = 0x10, 0x01


def find_neighbours(interfaces: Sequence[str], addresses: Sequence[str]) -> tuple[Neighbour, ...]:
    """The addresses (a.b.c.d) that answer within 1.5 s, each with its interface. Entries that an
    administrator or another program made are left alone and not counted. Raises EffectError where
    an interface is gone or an address is malformed."""
    try:
        wanted = {str(IPv4Address(address)) for address in addresses}
    except ValueError as error:
        raise EffectError(str(error)) from error
    with IPRoute() as netlink:
        index = {name: _index(netlink, name) for name in interfaces}
        entered = _entered(netlink, index)
        asked = [(name, a) for name in index for a in sorted(wanted) if (name, a) not in entered]
        try:
            for name, address in asked:
                forget(netlink, index[name], address)
                try:
                    ask(netlink, index[name], address)
                except NetlinkError as error:
                    raise EffectError(f"{name}: {address} cannot be asked for: {error}") from error
            found = _answers(netlink, index, asked)
        finally:
            for name, address in asked:
                forget(netlink, index[name], address)
    return tuple(Neighbour(interface=name, address=address) for name, address in sorted(found))


def _index(netlink: IPRoute, name: str) -> int:
    found = netlink.link_lookup(ifname=name)
    if not found:
        raise EffectError(f"interface {name} is gone")
    return int(found[0])


def _answers(
    netlink: IPRoute, index: dict[str, int], asked: Sequence[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Those of the (interface, address) in `asked` that answered in time."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        found = _entries(netlink, index, _ANSWERED) & set(asked)
        if len(found) == len(asked) or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_SECONDS)


def _entered(netlink: IPRoute, index: dict[str, int]) -> set[tuple[str, str]]:
    """Those that the kernel did not find by itself."""
    return _chosen(
        netlink,
        index,
        lambda entry: bool(
            entry["state"] & _PERMANENT
            or entry["flags"] & _LEARNED_ELSEWHERE
            or (entry.get_attr("NDA_FLAGS_EXT") or 0) & _MANAGED
        ),
    )


def _entries(netlink: IPRoute, index: dict[str, int], states: int) -> set[tuple[str, str]]:
    return _chosen(netlink, index, lambda entry: bool(entry["state"] & states))


def _chosen(
    netlink: IPRoute, index: dict[str, int], chosen: Callable[[Any], bool]
) -> set[tuple[str, str]]:
    name_of = {number: name for name, number in index.items()}
    entries: list[Any] = list(netlink.get_neighbours())
    return {
        (name_of[entry["ifindex"]], str(entry.get_attr("NDA_DST")))
        for entry in entries
        if entry["ifindex"] in name_of and chosen(entry)
    }
