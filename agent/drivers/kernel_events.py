"""Notifies when the kernel tells of a change to interfaces, addresses, routes, rules or queues.

A message is only checked for whether it concerns us, because a router's thousands of routes or a
host's containers must cost next to nothing; everything is read back later. The structures are those
of linux/rtnetlink.h. The kernel tells of a few sysctls too (rp_filter is one).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections.abc import Callable, Iterator

from pyroute2.netlink import rtnl

from placewire.agent.contract.entries import PROTOCOL, TABLES

_GROUP_IPV4_NETCONF = 1 << 23
_GROUPS = (
    rtnl.RTMGRP_LINK | rtnl.RTMGRP_TC | rtnl.RTMGRP_IPV4_IFADDR | rtnl.RTMGRP_IPV4_ROUTE
    | rtnl.RTMGRP_IPV6_IFADDR | rtnl.RTMGRP_IPV6_ROUTE | rtnl.RTMGRP_IPV4_RULE
    | _GROUP_IPV4_NETCONF
)  # fmt: skip
_NEW_NETCONF = 80
_LINKS = (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK)
_ADDRESSES = (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)
_ROUTES = (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE)
_RULES = (rtnl.RTM_NEWRULE, rtnl.RTM_DELRULE)
_QUEUES = (
    rtnl.RTM_NEWQDISC, rtnl.RTM_DELQDISC, rtnl.RTM_NEWTCLASS, rtnl.RTM_DELTCLASS,
    rtnl.RTM_NEWTFILTER, rtnl.RTM_DELTFILTER,
)  # fmt: skip
_HEADER = struct.Struct("=IHHII")
_IFLA_IFNAME, _RTA_OIF, _RTA_TABLE, _NETCONFA_IFINDEX = 3, 4, 15, 1
_BUFFER_BYTES = 65_536
_QUEUED_BYTES = 1 << 20


class KernelEvents:
    """Calls `notice` in the loop's thread, from `open` to `close`, for this network namespace."""

    def __init__(self, notice: Callable[[], None]) -> None:
        self._notice = notice
        self._names: frozenset[str] = frozenset()
        self._indexes: set[int] = set()
        self._socket: socket.socket | None = None

    def open(self, names: frozenset[str]) -> None:
        """names: the interfaces that concern us. Raises OSError."""
        self.close()
        self._names = names
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUED_BYTES)
        opened.bind((0, _GROUPS))
        self._indexes = {index for index, name in socket.if_nameindex() if name in names}
        self._socket = opened
        asyncio.get_running_loop().add_reader(opened, self._read)

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_BUFFER_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._notice()  # Messages were lost, ours perhaps among them.
            return
        # All messages are looked at, because `concerns` learns of new interfaces.
        concern = [self.concerns(kind, body) for kind, body in messages(data)]
        if any(concern):
            self._notice()

    def concerns(self, kind: int, body: bytes) -> bool:
        """Whether a message is about something of ours. Learns the indexes of new interfaces."""
        if kind in _RULES:
            return True
        if kind in (*_LINKS, *_ADDRESSES, *_QUEUES):
            (index,) = struct.unpack_from("=i", body, 4)
            if kind in _LINKS:
                name = attributes(body, 16).get(_IFLA_IFNAME, b"").rstrip(b"\0")
                if name.decode(errors="replace") in self._names:
                    self._indexes.add(index)
            return index in self._indexes
        if kind in _ROUTES:
            found = attributes(body, 12)
            table = _number(found.get(_RTA_TABLE)) or body[4]
            return (
                body[5] == PROTOCOL
                or table in TABLES
                or _number(found.get(_RTA_OIF)) in self._indexes
            )
        if kind == _NEW_NETCONF:
            # -1 stands for `all`, -2 for `default`.
            index = _number(attributes(body, 4).get(_NETCONFA_IFINDEX))
            return index in self._indexes or index < 0
        return False


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each message of a datagram."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def attributes(body: bytes, at: int) -> dict[int, bytes]:
    found = {}
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            break
        found[kind] = body[at + 4 : at + length]
        at += _aligned(length)
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _number(data: bytes | None) -> int:
    return int.from_bytes(data, sys.byteorder, signed=True) if data else 0
