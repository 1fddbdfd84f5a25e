"""Makes, changes and removes bridges of ours."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from placewire.agent.contract.entries import Bridge
from placewire.agent.drivers import (
    interface_changes,
    interfaces,
    on_bridges,
    openflow,
    ovsdb,
    ports,
)
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.drivers.switch_view import SwitchView
from placewire.agent.reconcile.foreign_kinds import FEATURES
from placewire.agent.reconcile.steps import EntryStep


def change_bridges(remote: str, run_dir: str, steps: Sequence[EntryStep], plan_name: str) -> None:
    """remote: of the database of Open vSwitch. run_dir: where ovs-vswitchd has its sockets. Raises
    EffectError, also where others have something on a bridge that goes."""
    wanted = [step.after for step in steps if isinstance(step.after, Bridge)]
    if wanted:
        view = interfaces.InterfaceView()
        marked = [
            ovsdb.MarkedBridge(b, _bridge_mac(b, view.mac(b.nic)), step.mark)
            for step in steps
            if isinstance(b := step.after, Bridge)
        ]
        ovsdb.add_bridges(remote, marked, plan_name)
        closed = [s.after.nic for s in steps if s.unopened and isinstance(s.after, Bridge)]
        ports.open_anew(remote, closed)
        ports.set_up(wanted)
        with connected(remote) as database:
            controlled = SwitchView(database).controlled
        there = [s.after.name for s in steps if s.before and isinstance(s.after, Bridge)]
        openflow.forward_again(run_dir, [b for b in there if b not in controlled])
    leaving = [s.before for s in steps if s.after is None and isinstance(s.before, Bridge)]
    if leaving:
        gone = [bridge.name for bridge in leaving]
        _require_nothing_on(remote, run_dir, steps)
        ports.announce_nics(leaving)
        ovsdb.remove_bridges(remote, gone)
        interface_changes.remove_left_by_switch(gone)


def _bridge_mac(bridge: Bridge, nic_mac: str) -> str:
    """The MAC address of a bridge: on the kernel datapath it is the NIC's own, so that the network
    sees no new station.

    The userspace datapath copies what a NIC receives, and the kernel's IP stack sees it as well.
    With one MAC on both, every packet is accepted twice (measured: each segment was answered by a
    duplicate acknowledgement too, and a 30 Mbit/s queue carried 7). With another MAC on the bridge,
    the kernel drops the NIC's copy as one for another host.
    """
    if bridge.datapath == "system":
        return nic_mac
    octets = bytes.fromhex(nic_mac.replace(":", ""))
    derived = hashlib.sha256(octets + bridge.name.encode()).digest()[:6]
    # Unicast, locally administered.
    return ":".join(f"{octet:02x}" for octet in bytes([derived[0] & 0xFC | 2]) + derived[1:])


def _require_nothing_on(remote: str, run_dir: str, steps: Sequence[EntryStep]) -> None:
    """Raises EffectError where others have come onto the bridges that these steps remove. Their
    ports and QoS are looked for in the transaction that removes the bridge."""
    with connected(remote) as database:
        switch = SwitchView(database)
    rows = {name for name, _, _ in switch.bridges()}
    view = interfaces.InterfaceView()
    found = [entry for entry in switch.foreign_on_ours() if entry.collection == FEATURES]
    for step in steps:
        name, offloads = step.entry.key, switch.offloads
        if step.after is not None:
            continue
        on = on_bridges.read_on_bridges(view, name, step.with_it, offloads=offloads)
        live = [name] if name in rows and name in view.names else []
        flows = openflow.read_flows(run_dir, live).foreign
        features = [entry for entry in found if entry.on == name]
        on_bridges.require_nothing([*on, *flows, *features])
