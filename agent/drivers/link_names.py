"""Tells the names of interfaces by their index in the kernel."""

from __future__ import annotations

from typing import Any

from placewire.agent.drivers.command import shown


def names_of_links(netlink: Any) -> dict[int, str]:
    """By the interface's index. pyroute2 has a name that is no UTF-8 as bytes."""
    return {link["index"]: shown(link.get_attr("IFLA_IFNAME")) for link in netlink.get_links()}
