"""Looks after the two interfaces of a bridge of ours: its NIC, and the one of its own name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from placewire.agent.contract.entries import Bridge
from placewire.agent.contract.state import UnopenedNic
from placewire.agent.drivers import ethtool, interfaces, on_queues, ovsdb, sysctl
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.drivers.switch_view import SwitchView


def unopened(
    bridges: Sequence[Bridge], switch: SwitchView, view: InterfaceView
) -> Iterator[UnopenedNic]:
    """Yields none while ovs-vswitchd does not run, where it has made no interface of a bridge."""
    errors, heard = switch.errors(), _indexes_heard()
    for bridge in bridges:
        there = bridge.nic in view.names and bridge.name in view.names
        if there and (bridge.nic in errors or not _is_opened(view.link(bridge.nic), heard)):
            yield UnopenedNic(nic=bridge.nic, why=errors.get(bridge.nic, ""))


def _is_opened(nic: Mapping[str, Any], heard: Collection[int] | None) -> bool:
    """Whether ovs-vswitchd has this port open: it then belongs to the kernel datapath, or is
    promiscuous for the userspace datapath, which hears it by a packet socket. A NIC that was moved
    to another network namespace and back is still promiscuous, but nobody hears it. The database
    does not say any of this (Open vSwitch 3.1). nic: as InterfaceView.link has it."""
    if nic.get("master") == "ovs-system":
        return True
    return "PROMISC" in nic.get("flags", ()) and (heard is None or nic["ifindex"] in heard)


def _indexes_heard() -> frozenset[int] | None:
    """The indexes of the interfaces that packet sockets are bound to; None: the kernel does not
    say."""
    try:
        _, *lines = Path("/proc/net/packet").read_text().splitlines()
    except OSError:
        return None
    return frozenset(int(line.split()[4]) for line in lines)


def open_anew(remote: str, nics: Collection[str]) -> None:
    """ovs-vswitchd takes a NIC's queues off when it closes it, and makes them when it opens it.
    Raises EffectError, also where others have something on them."""
    if not nics:
        return
    with connected(remote) as database:
        _, queues = SwitchView(database).shapers_and_queues()
    on_queues.require_bare(nics, queues)
    ovsdb.open_anew(remote, nics)


def set_up(bridges: Sequence[Bridge]) -> None:
    """Sets the interfaces of bridges up that are written to the database, and their NICs. Raises
    EffectError."""
    view = InterfaceView()
    for bridge in bridges:
        if bridge.datapath == "netdev":
            ethtool.switch_offloads_off(bridge.name)
        # An interface that has just been made: once up, it would take addresses and default routes
        # from any router's advertisement. Whoever switches IPv6 on again later may use it.
        if view.is_bare_of_v6(bridge.name):
            sysctl.switch_ipv6_off(bridge.name)
    interfaces.bring_up([name for b in bridges for name in (b.nic, b.name)])
