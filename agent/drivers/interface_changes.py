"""Changes addresses and states of interfaces, and removes what a killed switch left of its own."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from ipaddress import IPv4Interface
from socket import AF_INET
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.contract.entries import Address
from placewire.agent.drivers.announce import announce
from placewire.agent.drivers.command import run
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.steps import EntryStep

_SCOPE_LINK, _PROTOCOL_KERNEL = 253, 2


def change_addresses(steps: Sequence[EntryStep]) -> None:
    with IPRoute() as netlink:
        for step in steps:
            entry = step.entry
            assert isinstance(entry, Address)
            indexes = netlink.link_lookup(ifname=entry.interface)
            if not indexes:
                raise EffectError(f"address {entry.key}: the interface is gone")
            interface = IPv4Interface(entry.address)
            netlink.addr(
                "del" if step.after is None else "replace",
                index=indexes[0],
                address=str(interface.ip),
                prefixlen=interface.network.prefixlen,
                broadcast=str(interface.network.broadcast_address),
            )
            if step.after == step.before:  # Its subnet's route is gone, and does not come with it.
                _route_to_subnet(netlink, indexes[0], interface)
            if step.after is not None:
                announce(entry.interface, [str(interface.ip)])


def _route_to_subnet(netlink: Any, index: int, interface: IPv4Interface) -> None:
    """As the kernel makes it with the address, unless somebody has made one meanwhile."""
    try:
        netlink.route(
            "add",
            family=AF_INET,
            dst=str(interface.network),
            oif=index,
            prefsrc=str(interface.ip),
            proto=_PROTOCOL_KERNEL,
            scope=_SCOPE_LINK,
        )
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise


def bring_up(interfaces: Sequence[str]) -> None:
    with IPRoute() as netlink:
        for interface in interfaces:
            for index in netlink.link_lookup(ifname=interface):
                netlink.link("set", index=index, state="up")


def set_promiscuous(nics: Sequence[str]) -> None:
    """Raises EffectError."""
    for nic in nics:
        run(["ip", "link", "set", "dev", nic, "promisc", "on"])


def remove_left_by_switch(bridges: Sequence[str]) -> None:
    """Removes the interfaces that a killed ovs-vswitchd left of these bridges. Raises EffectError,
    also where ovs-vswitchd is back and uses the tap: the kernel then refuses."""
    for bridge in InterfaceView().left_by_switch(bridges, ()):
        if bridge.datapath == "netdev":
            run(["ip", "tuntap", "del", "dev", bridge.name, "mode", "tap"])
        else:
            run(["ovs-dpctl", "del-if", "ovs-system", bridge.name])
