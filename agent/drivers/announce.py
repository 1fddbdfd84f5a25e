"""Gratuitous ARP: tells neighbours at once which MAC address an IP address has now.

Without it, neighbours would send to the former MAC address until their entries age, half a minute
or more.

The kernel sends it for us. Told to use a neighbour that it does not know, the kernel asks for it by
ARP; where the neighbour is our own address, it asks in that address's name, which is an
announcement (RFC 5227, section 3). This needs CAP_NET_ADMIN only; a socket that sends ARP would
need CAP_NET_RAW. For several addresses in one subnet the kernel asks in the name of the first;
neighbours learn of the others when they ask.
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
    """addresses: as a.b.c.d. A failure is only logged: neighbours then learn by themselves."""
    with IPRoute() as netlink:
        for index in netlink.link_lookup(ifname=interface):
            for address in addresses:
                try:
                    ask(netlink, index, address)
                except NetlinkError as error:
                    log.warning("%s: %s could not be announced: %s", interface, address, error)
                    continue
                # It was sent. Nobody answers for our own address, and the kernel would ask again.
                forget(netlink, index, address)


def ask(netlink: IPRoute, index: int, address: str) -> None:
    """Has the kernel ask for an address by ARP through interface `index`. Raises NetlinkError."""
    netlink.neigh("replace", dst=address, ifindex=index, state=_STATE_NONE, flags=_FLAG_USE)


def forget(netlink: IPRoute, index: int, address: str) -> None:
    """Removes the kernel's entry for an address, where it has one."""
    with contextlib.suppress(NetlinkError):
        netlink.neigh("del", dst=address, ifindex=index)
