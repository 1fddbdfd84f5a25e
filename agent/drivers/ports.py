"""Looks after the two interfaces of a bridge of ours: its NIC, and the one of its own name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

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
    errors = switch.errors()
    for bridge in bridges:
        there = bridge.nic in view.names and bridge.name in view.names
        if there and (bridge.nic in errors or not view.is_opened(bridge.nic)):
            yield UnopenedNic(nic=bridge.nic, why=errors.get(bridge.nic, ""))


def misses_frames(bridge: Bridge, view: InterfaceView) -> bool:
    """Whether its NIC is to be set promiscuous again. The kernel datapath has no flag for that
    which others could take off. Raises EffectError."""
    there = bridge.datapath == "netdev" and bridge.nic in view.names
    return there and view.misses_frames(bridge.nic)


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
    interfaces.set_promiscuous([b.nic for b in bridges if misses_frames(b, view)])
    interfaces.bring_up([name for b in bridges for name in (b.nic, b.name)])
