"""Gratuitous ARP: tells neighbours at once under which MAC address an address is found now.

Without it they would keep sending to the former one until their entries age, half a minute or more.

The kernel sends it for us: told to use a neighbour that it does not know yet, it asks for it, and
asked for an address of our own it asks in that address's name (an announcement, RFC 5227, section
3). So this takes CAP_NET_ADMIN only, where a socket that sends ARP would take CAP_NET_RAW. Of
several addresses in one subnet the kernel asks in the name of the first: of the others neighbours
learn when they ask.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

log = logging.getLogger(__name__)

# linux/neighbour.h
_STATE_NONE = 0x00
_FLAG_USE = 0x01


def announce(interface: str, addresses: Iterable[str]) -> None:
    """addresses: of the interface, as a.b.c.d. What fails is logged: neighbours then find out by
    themselves."""
    with IPRoute() as netlink:
        for index in netlink.link_lookup(ifname=interface):
            for address in addresses:
                _announce(netlink, interface, index, address)


def _announce(netlink: IPRoute, interface: str, index: int, address: str) -> None:
    try:
        netlink.neigh("replace", dst=address, ifindex=index, state=_STATE_NONE, flags=_FLAG_USE)
    except NetlinkError as error:
        log.warning("%s: neighbours could not be told of %s: %s", interface, address, error)
        return
    # It was sent; nobody answers for our own address, and it would be asked for twice more.
    with contextlib.suppress(NetlinkError):
        netlink.neigh("del", dst=address, ifindex=index)
