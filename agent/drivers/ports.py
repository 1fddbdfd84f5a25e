"""Looks after the two interfaces of a bridge of ours: its NIC, and the one of its own name."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from placewire.agent.contract.entries import Bridge
from placewire.agent.contract.state import UnopenedNic
from placewire.agent.drivers import ethtool, interface_changes, interfaces, on_queues, ovsdb, sysctl
from placewire.agent.drivers.command import run
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.drivers.packet_sockets import PacketSockets
from placewire.agent.drivers.switch_view import SwitchView
from placewire.agent.reconcile.effects import EffectError

log = logging.getLogger(__name__)


def unopened(
    bridges: Sequence[Bridge], switch: SwitchView, view: InterfaceView, sockets: PacketSockets
) -> Iterator[UnopenedNic]:
    """Yields none while ovs-vswitchd does not run, where it has made no interface of a bridge."""
    errors = switch.errors()
    for bridge in bridges:
        there = bridge.nic in view.names and bridge.name in view.names
        if there and (bridge.nic in errors or not _is_opened(view.link(bridge.nic), sockets)):
            yield UnopenedNic(nic=bridge.nic, why=errors.get(bridge.nic, ""))


def _is_opened(nic: Mapping[str, Any], sockets: PacketSockets) -> bool:
    """Whether ovs-vswitchd has this port open: it then belongs to the kernel datapath, or is
    promiscuous for the userspace datapath, which hears it by a packet socket. A NIC that was moved
    to another network namespace and back is still promiscuous, but nobody hears it; one that
    somebody took that flag off is heard by ovs-vswitchd all the same. The database does not say any
    of this (Open vSwitch 3.1). nic: as InterfaceView.link has it."""
    if nic.get("master") == "ovs-system":
        return True
    if "PROMISC" in nic.get("flags", ()):
        return sockets.heard is None or nic["ifindex"] in sockets.heard
    return nic.get("ifname") in sockets.heard_by_switch


def misses_frames(bridge: Bridge, view: InterfaceView, sockets: PacketSockets) -> bool:
    """Whether ovs-vswitchd has its NIC open by a packet socket, and somebody took off that the NIC
    is promiscuous: it then drops what is for the bridge's own MAC address. The kernel datapath has
    no flag for that which others could take off. Raises EffectError."""
    nic = view.link(bridge.nic)
    if bridge.datapath != "netdev" or "PROMISC" in nic.get("flags", ()):
        return False
    if bridge.nic not in view.names or bridge.nic not in sockets.heard_by_switch:
        return False
    # An ovs-vswitchd that opens it just now sets the flag first.
    return not interfaces.is_promiscuous(bridge.nic)


def open_anew(remote: str, nics: Collection[str]) -> None:
    """ovs-vswitchd takes a NIC's queues off when it closes it, and makes them when it opens it.
    Raises EffectError, also where others have something on them."""
    if not nics:
        return
    with connected(remote) as database:
        _, queues = SwitchView(database).shapers_and_queues()
    on_queues.require_bare(nics, queues)
    ovsdb.open_anew(remote, nics)


def announce_nics(bridges: Sequence[Bridge]) -> None:
    """Tells the neighbours of bridges that are about to be removed the MAC addresses of their NICs,
    to which the bridges' IPv6 addresses move back. The kernel does so by itself for an interface
    whose own MAC address changes (ndisc_notify); it does not for an address that a NIC gets. A
    failure is only logged: neighbours then learn it by themselves, after some seconds."""
    view = InterfaceView()
    for bridge in bridges:
        has_v6 = any(":" in address for address in view.addresses(bridge.name))
        if has_v6 and bridge.nic in view.names and view.mac(bridge.nic) != view.mac(bridge.name):
            try:
                run(["ip", "link", "set", "dev", bridge.name, "address", view.mac(bridge.nic)])
            except EffectError as error:
                log.warning("neighbours of %s are not told of its NIC: %s", bridge.name, error)


def set_up(bridges: Sequence[Bridge]) -> None:
    """Sets the interfaces of bridges up that are written to the database, and their NICs. Raises
    EffectError."""
    view, sockets = InterfaceView(), PacketSockets()
    for bridge in bridges:
        if bridge.datapath == "netdev":
            ethtool.switch_offloads_off(bridge.name)
        # An interface that has just been made: once up, it would take addresses and default routes
        # from any router's advertisement. It is switched on for addresses that move to the bridge,
        # and whoever else switches it on may use it.
        if view.is_bare_of_v6(bridge.name):
            sysctl.switch_ipv6_off(bridge.name)
    interface_changes.set_promiscuous([b.nic for b in bridges if misses_frames(b, view, sockets)])
    interface_changes.bring_up([name for b in bridges for name in (b.nic, b.name)])
