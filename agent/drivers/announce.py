"""Gratuitous ARP: tells neighbours at once under which MAC address an address is found now.

Without it they would keep sending to the former one until their entries age, half a minute or more.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterable

log = logging.getLogger(__name__)

_ETHERNET_ARP = 0x0806
_BROADCAST = b"\xff" * 6


def announce(interface: str, addresses: Iterable[str]) -> None:
    """addresses: as a.b.c.d. Needs CAP_NET_RAW; without it neighbours find out by themselves."""
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERNET_ARP)) as link:
            link.bind((interface, _ETHERNET_ARP))
            mac = link.getsockname()[4]
            for address in addresses:
                link.send(gratuitous_arp(mac, socket.inet_aton(address)))
    except OSError as error:
        log.warning("%s: neighbours could not be told of its addresses: %s", interface, error)


def gratuitous_arp(mac: bytes, address: bytes) -> bytes:
    """An ARP announcement (RFC 5227, section 3): a request for one's own address."""
    ethernet = struct.pack("!6s6sH", _BROADCAST, mac, _ETHERNET_ARP)
    fixed = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
    return ethernet + fixed + mac + address + bytes(6) + address
