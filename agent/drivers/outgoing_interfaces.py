"""Asks the kernel by which interfaces packets leave."""

from __future__ import annotations

from socket import AF_INET, AF_INET6
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.drivers.command import shown


def leaving_by(address: str) -> list[str]:
    """The interface by which packets to this address leave; empty while there is no route."""
    try:
        with IPRoute() as netlink:
            # A link-local IPv6 address has the interface as a part.
            host, _, _ = address.partition("%")
            routes = netlink.route("get", dst=host, family=AF_INET6 if ":" in host else AF_INET)
            indexes = [i for route in routes if (i := route.get_attr("RTA_OIF")) is not None]
            return [name_of_link(netlink, index) for index in indexes]
    except (NetlinkError, OSError):
        return []


def name_of_link(netlink: Any, index: int) -> str:
    """pyroute2 has a name that is no UTF-8 as bytes. Raises NetlinkError where it is gone."""
    (link,) = netlink.get_links(index)
    return shown(link.get_attr("IFLA_IFNAME"))
