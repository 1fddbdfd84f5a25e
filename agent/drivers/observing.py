"""Reads back one server's whole network, ours and what of others is on it, as one ObservedState."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from shlex import quote

from placewire.agent.contract.entries import BRIDGE_PREFIX, Address, Bridge
from placewire.agent.contract.state import ForeignEntry, NicFacts, ObservedState
from placewire.agent.drivers import (
    interfaces,
    on_bridges,
    on_nics,
    on_queues,
    openflow,
    policy_routing,
    ports,
    sysctl,
    traffic_control,
)
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.drivers.packet_sockets import PacketSockets
from placewire.agent.drivers.switch_view import SwitchView
from placewire.agent.reconcile.foreign_kinds import RECEIVERS, SHAPERS
from placewire.agent.reconcile.unmarkable import Unmarked


def observe(remote: str, run_dir: str, sought: Unmarked) -> ObservedState:
    """remote: of the database of Open vSwitch. run_dir: where ovs-vswitchd has its sockets. Raises
    whatever the parts raise that cannot be read."""
    with connected(remote) as database:
        switch = SwitchView(database)
    view = interfaces.InterfaceView()
    bridges = [
        Bridge(name=name, nic=nic, datapath=datapath, mtu_bytes=view.mtu_bytes(name))
        for name, nic, datapath in switch.bridges()
    ]
    shapers, queues = switch.shapers_and_queues()
    left = view.left_by_switch(sought.bridges, switch.internal_interfaces)
    nics = [bridge.nic for bridge in bridges if bridge.nic]
    live = [bridge.name for bridge in bridges if bridge.name in view.names]
    flows, foreign_flows, all_deaf = openflow.read_flows(run_dir, live)
    # A controller of somebody's decides what its bridge forwards.
    deaf = sorted(set(all_deaf) - switch.controlled)
    classifiers, foreign_filters = traffic_control.read_classifiers(
        nic for nic in nics if nic in view.names
    )
    rules, foreign_rules = policy_routing.read_rules()
    routes, foreign_routes = policy_routing.read_routes(view.names_by_index)
    facts = tuple(
        # Only these may have to be set down again, now or later.
        nic.model_copy(update={"standing": on_nics.what_stands_on(view, nic.name)})
        if nic.name in sought.nics or not nic.up
        else nic
        for nic in view.nics(switch.bridge_of_interface, switch.internal_interfaces)
    )
    ours = {bridge.name for bridge in (*bridges, *left)}
    known = {*(nic.name for nic in facts), *ours}
    effective = traffic_control.read_queues(nics)
    theirs = switch.foreign_on_ours()
    shaped_by_others = {entry.key for entry in theirs if entry.collection == SHAPERS}
    sockets = PacketSockets()
    unopened = tuple(ports.unopened(bridges, switch, view, sockets))
    addresses = [
        Address(interface=name, address=address)
        for name in live
        for address in view.addresses(name)
        if sought.addresses is None or (name, address) in sought.addresses
    ]
    of_v4 = tuple(address for address in addresses if ":" not in address.address)
    beside = _on_bridges(view, switch, [*live, *(b.name for b in left)], sought)
    return ObservedState(
        bridges=(*bridges, *left),
        addresses=of_v4,
        sysctls=tuple(sysctl.read_sysctls(sought.sysctls)),
        shapers=tuple(shapers),
        queues=tuple(queues),
        flows=tuple(flows),
        classifiers=tuple(classifiers),
        routes=tuple(routes),
        rules=tuple(rules),
        nics=facts,
        effective_queues=tuple(effective),
        foreign=(
            *switch.foreign_bridges(),
            *theirs,
            *_foreign_interfaces(view.names, ours),
            *foreign_flows,
            *foreign_filters,
            *on_queues.read_on_queues(
                view,
                [nic for nic in nics if nic in view.names and nic not in shaped_by_others],
                effective,
                switch.queue_ids(),
            ),
            *(
                entry
                for nic in facts
                if nic.left_by_switch and nic.name in sought.nics
                for entry in traffic_control.read_on_left(nic.name, view.disciplines(nic.name))
            ),
            *_receiving(nic for nic in facts if nic.name in sought.nics and not switch.offloads),
            *beside,
            *foreign_rules,
            # One over a bridge of ours is told as what is on that.
            *(r for r in foreign_routes if r.key not in {entry.key for entry in beside}),
        ),
        bridges_down=tuple(
            bridge.name
            for bridge in bridges
            if bridge.name in view.names
            and (
                not view.is_up(bridge.name)
                or ports.misses_frames(bridge, view, sockets)
                or bridge.name in deaf
            )
        ),
        unopened=unopened,
        unrouted=tuple(a.key for a in of_v4 if view.lacks_its_subnet(a.interface, a.address)),
        bridge_routes=tuple(
            r for name in live for r in view.foreign_routes(name, also=sought.routes or ())
        ),
        unused_rows=tuple(switch.unused_rows()),
        held=tuple(switch.held()),
        moved_addresses=tuple(address for address in addresses if ":" in address.address),
        addresses_elsewhere=tuple(
            Address(interface=name, address=address)
            for name in sorted({*view.names} - known)
            for address in view.addresses(name)
        ),
        routes_elsewhere=view.foreign_routes_beside(known),
        problems=(
            *_problems(bridges, view),
            *(one.sentence for one in unopened),
            *switch.vlan_problems(),
            *(f"bridge {name} passes nothing: its flow for all packets is gone" for name in deaf),
        ),
    )


def _on_bridges(
    view: interfaces.InterfaceView,
    switch: SwitchView,
    bridges: Collection[str],
    sought: Unmarked,
) -> list[ForeignEntry]:
    if sought.addresses is None or sought.routes is None:
        return []
    return [
        entry
        for name in bridges
        for entry in on_bridges.read_on_bridges(
            view,
            name,
            {*(a for n, a in sought.addresses if n == name), *sought.routes},
            offloads=switch.offloads,
        )
    ]


def _foreign_interfaces(names: Collection[str], ours: Collection[str]) -> list[ForeignEntry]:
    """Foreign interfaces with a name that only our bridges should have."""
    return [
        ForeignEntry(
            collection="bridges",
            key=name,
            text=f"interface {name}",
            remedy=f"ip link del {quote(name)}",
        )
        for name in names
        if name.startswith(BRIDGE_PREFIX) and name not in ours
    ]


def _receiving(nics: Iterable[NicFacts]) -> Iterator[ForeignEntry]:
    """What Open vSwitch takes off a NIC that it opens. It leaves other kinds alone, and makes one
    of this kind itself where it offloads flows."""
    for nic in nics:
        if nic.receiving_qdisc == "ingress":
            yield ForeignEntry(
                collection=RECEIVERS,
                key=nic.name,
                text=f"the {nic.receiving_qdisc} queueing discipline",
                remedy=f"tc qdisc del dev {quote(nic.name)} {nic.receiving_qdisc}",
            )


def _problems(bridges: Sequence[Bridge], view: interfaces.InterfaceView) -> Iterator[str]:
    for bridge in bridges:
        if not view.is_up(bridge.name):
            yield f"bridge {bridge.name} is down"
        if master := view.master(bridge.name):
            yield f"bridge {bridge.name} is a port of {master}, which gets what comes for it"
    for bridge in bridges:
        nic_mtu_bytes = view.mtu_bytes(bridge.nic)
        if bridge.nic in view.names and nic_mtu_bytes < bridge.mtu_bytes:
            yield (
                f"bridge {bridge.name} has MTU {bridge.mtu_bytes}, its NIC only {nic_mtu_bytes}: "
                "frames are lost"
            )
