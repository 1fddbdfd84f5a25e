"""Who answers where: asks for addresses (ARP) through given interfaces, whatever routes say.

The kernel asks for us, as in announce.py. What it learned is forgotten again: an entry that stayed
would lead packets through the wrong NIC.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.contract.measurement import Neighbour
from placewire.agent.reconcile.effects import EffectError

# The kernel asks again after one second: twice in all.
_ANSWER_SECONDS = 1.5
_LOOK_SECONDS = 0.05
# linux/neighbour.h
_STATE_NONE = 0x00
_FLAG_USE = 0x01
_ANSWERED = 0x02 | 0x04 | 0x08 | 0x10  # reachable, stale, delay, probe
_PERMANENT = 0x80


def find_neighbours(interfaces: Sequence[str], addresses: Sequence[str]) -> tuple[Neighbour, ...]:
    """Those that answer within 1.5 s. addresses: as a.b.c.d. What an administrator entered for good
    is left alone, and not counted. Raises EffectError where an interface is gone or an address is
    none."""
    try:
        wanted = {str(IPv4Address(address)) for address in addresses}
    except ValueError as error:
        raise EffectError(str(error)) from error
    with IPRoute() as netlink:
        index = {name: _index(netlink, name) for name in interfaces}
        entered = _entries(netlink, index, _PERMANENT)
        asked = [(name, a) for name in index for a in sorted(wanted) if (name, a) not in entered]
        try:
            for name, address in asked:
                _forget(netlink, index[name], address)
                _ask(netlink, index[name], name, address)
            found = _answers(netlink, index, asked)
        finally:
            for name, address in asked:
                _forget(netlink, index[name], address)
    return tuple(Neighbour(interface=name, address=address) for name, address in sorted(found))


def _index(netlink: IPRoute, name: str) -> int:
    found = netlink.link_lookup(ifname=name)
    if not found:
        raise EffectError(f"interface {name} is gone")
    return int(found[0])


def _ask(netlink: IPRoute, index: int, name: str, address: str) -> None:
    try:
        netlink.neigh("replace", dst=address, ifindex=index, state=_STATE_NONE, flags=_FLAG_USE)
    except NetlinkError as error:
        raise EffectError(f"{name}: {address} cannot be asked for: {error}") from error


def _forget(netlink: IPRoute, index: int, address: str) -> None:
    with contextlib.suppress(NetlinkError):  # not known
        netlink.neigh("del", dst=address, ifindex=index)


def _answers(
    netlink: IPRoute, index: dict[str, int], asked: Sequence[tuple[str, str]]
) -> set[tuple[str, str]]:
    """(interface, address) of those that answered."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        found = _entries(netlink, index, _ANSWERED) & set(asked)
        if len(found) == len(asked) or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_SECONDS)


def _entries(netlink: IPRoute, index: dict[str, int], states: int) -> set[tuple[str, str]]:
    name_of = {number: name for name, number in index.items()}
    entries: list[Any] = list(netlink.get_neighbours())
    return {
        (name_of[entry["ifindex"]], str(entry.get_attr("NDA_DST")))
        for entry in entries
        if entry["ifindex"] in name_of and entry["state"] & states
    }
