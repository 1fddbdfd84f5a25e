"""One server's network: reads everything back, and executes steps in their order."""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Literal

from placewire.agent.contract.capabilities import Capabilities, TrafficControl
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.entries import (
    BRIDGE_PREFIX,
    Address,
    Bridge,
    DatapathType,
    Entry,
    Queue,
    Shaper,
)
from placewire.agent.contract.state import ForeignEntry, ObservedState
from placewire.agent.drivers import (
    abilities,
    devices,
    interface_changes,
    interfaces,
    nic_moves,
    on_bridges,
    on_nics,
    on_queues,
    openflow,
    ovsdb,
    policy_routing,
    ports,
    sysctl,
    traffic_control,
)
from placewire.agent.drivers.as_effect_error import as_effect_error
from placewire.agent.drivers.open_vswitch_version import open_vswitch_version
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.drivers.packet_sockets import PacketSockets
from placewire.agent.drivers.switch_view import SwitchView
from placewire.agent.reconcile.effective import drifted_nics
from placewire.agent.reconcile.effects import EffectError, UnreadableError
from placewire.agent.reconcile.foreign import FEATURES, RECEIVERS, SHAPERS
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step
from placewire.agent.reconcile.unmarkable import NOTHING_KNOWN, Unmarked

log = logging.getLogger(__name__)

# Collections whose consecutive steps are one transaction together.
_TOGETHER = {"shapers": "queues of the switch", "queues": "queues of the switch"}


class Server:
    """Implements placewire.agent.reconcile.effects.Network with the kernel and Open vSwitch."""

    def __init__(self, config: AgentConfig) -> None:
        self._remote = config.ovsdb_remote
        self._run_dir = config.openvswitch_run_dir
        self.datapath = datapath_of(config)

    @cached_property
    def traffic_control(self) -> TrafficControl:
        """The kernel's abilities, read once, because a kernel does not change while it runs."""
        return abilities.traffic_control()

    def observe(self, sought: Unmarked) -> ObservedState:
        """Raises UnreadableError where something cannot be read: an interface vanished in between,
        the database does not answer, or a tool says something unexpected."""
        with as_effect_error("reading the server's network", UnreadableError):
            return self._observe(sought)

    def observe_what_answers(
        self, sought: Unmarked = NOTHING_KNOWN
    ) -> tuple[ObservedState, str | None]:
        """Returns the state and None, or, where Open vSwitch cannot be read, the NICs alone and the
        reason. Raises EffectError."""
        try:
            return self.observe(sought), None
        except UnreadableError as error:
            with as_effect_error("reading the server's interfaces", EffectError):
                return ObservedState(nics=interfaces.InterfaceView().nics({}, ())), str(error)

    def _observe(self, sought: Unmarked) -> ObservedState:
        with connected(self._remote) as database:
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
        flows, foreign_flows, all_deaf = openflow.read_flows(self._run_dir, live)
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
        known = {*(nic.name for nic in facts), *(b.name for b in (*bridges, *left))}
        effective = traffic_control.read_queues(nics)
        theirs = switch.foreign_on_ours()
        shaped_by_others = {entry.key for entry in theirs if entry.collection == SHAPERS}
        sockets = PacketSockets()
        unopened = tuple(ports.unopened(bridges, switch, view, sockets))
        addresses = tuple(
            Address(interface=name, address=address)
            for name in live
            for address in view.addresses(name)
            if ":" not in address
            and (sought.addresses is None or (name, address) in sought.addresses)
        )
        moved_addresses = tuple(
            Address(interface=name, address=address)
            for name in live
            for address in view.addresses(name)
            if ":" in address and (sought.addresses is None or (name, address) in sought.addresses)
        )
        beside = self._on_bridges(view, switch, [*live, *(b.name for b in left)], sought)
        return ObservedState(
            bridges=(*bridges, *left),
            addresses=addresses,
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
                *_foreign_interfaces(view.names, {b.name for b in (*bridges, *left)}),
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
                *(
                    ForeignEntry(
                        collection=RECEIVERS,
                        key=nic.name,
                        text=f"the {nic.receiving_qdisc} queueing discipline",
                        remedy=f"tc qdisc del dev {nic.name} {nic.receiving_qdisc}",
                    )
                    for nic in facts
                    # It leaves others alone, and makes such a one itself where it offloads flows.
                    if nic.receiving_qdisc == "ingress"
                    and nic.name in sought.nics
                    and not switch.offloads
                ),
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
            unrouted=tuple(
                a.key for a in addresses if view.lacks_its_subnet(a.interface, a.address)
            ),
            bridge_routes=tuple(
                r for name in live for r in view.foreign_routes(name, also=sought.routes or ())
            ),
            unused_rows=tuple(switch.unused_rows()),
            held=tuple(switch.held()),
            moved_addresses=moved_addresses,
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
                *(
                    f"bridge {name} passes nothing: its flow for all packets is gone"
                    for name in deaf
                ),
            ),
        )

    def _on_bridges(
        self,
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

    def apply(self, steps: Sequence[Step], plan_name: str) -> None:
        """Executes consecutive steps of one kind as one transaction. Raises EffectError at the
        first that fails; at the end, where a NIC's addresses or routes could not be moved to its
        bridge: nothing else stands on those routes, and one may have lost what it needs for good.
        """
        failures: list[str] = []
        for _, group in groupby(steps, key=_kind):
            batch = list(group)
            change, first = batch[0].as_change(), batch[0]
            try:
                with as_effect_error(
                    f"{change.action} {change.collection} {change.key}", EffectError
                ):
                    self._apply_batch(batch, plan_name)
            except EffectError as error:
                failures.append(str(error))
                if not (isinstance(first, NicStep) and first.direction == "to bridge"):
                    break
        if failures:
            raise EffectError("; ".join(failures))

    def capabilities(self) -> Capabilities:
        """Says less where Open vSwitch does not answer. Raises EffectError."""
        datapath: Literal["system", "netdev", "none"] = self.datapath
        found = devices.devices()
        observed, unreadable = self.observe_what_answers()
        # Only a stage and an undo go by what stands on a NIC, and by all of it: a hello is bounded.
        nics = tuple(nic.model_copy(update={"standing": ()}) for nic in observed.nics)
        if unreadable is not None:
            log.warning("Open vSwitch cannot be read: %s", unreadable)
            datapath = "none"
        return Capabilities(
            datapath=datapath,
            set_queue_honoured=datapath == "system",
            open_vswitch_version=open_vswitch_version(self._remote),
            kernel_version=platform.release(),
            python_version=platform.python_version(),
            nics=nics,
            traffic_control=self.traffic_control,
            offloading=abilities.offloading(nic.name for nic in nics),
            devices=found.devices,
            gpu_problem=found.problem,
        )

    def _apply_batch(self, batch: list[Step], plan_name: str) -> None:
        first = batch[0]
        if isinstance(first, NicStep):
            nic_moves.move_nics([step for step in batch if isinstance(step, NicStep)])
            return
        entries = [step for step in batch if isinstance(step, EntryStep)]
        if first.collection == "bridges":
            self._bridges(entries, plan_name)
        elif first.collection in _TOGETHER:
            on_queues.require_free(entries)
            ovsdb.change_queues(self._remote, entries, plan_name)
            self._make_effective([step.entry for step in entries if step.action == "replace"])
        elif first.collection == "unused rows":
            ovsdb.remove_unused_rows(self._remote)
        elif first.collection == "flows":
            openflow.change_flows(self._run_dir, entries)
        elif first.collection == "addresses":
            going = {s.before: s for s in entries if s.after is None}
            addresses = [address for address in going if isinstance(address, Address)]
            for address in addresses:
                on_bridges.require_alone(address, going[address].with_it, addresses)
            interface_changes.change_addresses(entries)
        else:
            _KERNEL[first.collection](entries)

    def _make_effective(self, replaced: list[Entry]) -> None:
        """Makes the kernel's classes match the queues of replaced shapers, where they do not.
        Writing the classes again leaves foreign filters alone; it does not help where the HTB is
        gone, which is then installed anew."""
        nics = {entry.nic for entry in replaced if isinstance(entry, Shaper)}
        queues = [entry for entry in replaced if isinstance(entry, Queue) and entry.nic in nics]
        if queues and drifted_nics(queues, traffic_control.read_queues(nics)):
            ovsdb.write_classes_again(self._remote)
        if queues and (left := drifted_nics(queues, traffic_control.read_queues(nics))):
            on_queues.require_bare(left, queues)
            ovsdb.install_anew(self._remote, left)

    def _bridges(self, steps: list[EntryStep], plan_name: str) -> None:
        wanted = [step.after for step in steps if isinstance(step.after, Bridge)]
        if wanted:
            view = interfaces.InterfaceView()
            marked = [
                ovsdb.MarkedBridge(b, _bridge_mac(b, view.mac(b.nic)), step.mark)
                for step in steps
                if isinstance(b := step.after, Bridge)
            ]
            ovsdb.add_bridges(self._remote, marked, plan_name)
            closed = [s.after.nic for s in steps if s.unopened and isinstance(s.after, Bridge)]
            ports.open_anew(self._remote, closed)
            ports.set_up(wanted)
            with connected(self._remote) as database:
                controlled = SwitchView(database).controlled
            there = [s.after.name for s in steps if s.before and isinstance(s.after, Bridge)]
            openflow.forward_again(self._run_dir, [b for b in there if b not in controlled])
        gone = [s.before.name for s in steps if s.after is None and isinstance(s.before, Bridge)]
        if gone:
            self._require_nothing_on(steps)
            leaving = [s.before for s in steps if s.after is None and isinstance(s.before, Bridge)]
            ports.announce_nics(leaving)
            ovsdb.remove_bridges(self._remote, gone)
            interface_changes.remove_left_by_switch(gone)

    def _require_nothing_on(self, steps: Sequence[EntryStep]) -> None:
        """Raises EffectError where others have come onto the bridges that these steps remove. Their
        ports and QoS are looked for in the transaction that removes the bridge."""
        with connected(self._remote) as database:
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
            flows = openflow.read_flows(self._run_dir, live).foreign
            features = [entry for entry in found if entry.on == name]
            on_bridges.require_nothing([*on, *flows, *features])


_KERNEL: dict[str, Callable[[Sequence[EntryStep]], None]] = {
    "sysctls": sysctl.change_sysctls,
    "classifiers": traffic_control.change_classifiers,
    "routes": policy_routing.change_routes,
    "rules": policy_routing.change_rules,
}


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


def _kind(step: Step) -> tuple[str, bool]:
    is_removal = isinstance(step, EntryStep) and step.after is None
    return _TOGETHER.get(step.collection, step.collection), is_removal


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


def _foreign_interfaces(names: Collection[str], ours: Collection[str]) -> list[ForeignEntry]:
    """Foreign interfaces with a name that only our bridges should have."""
    return [
        ForeignEntry(
            collection="bridges",
            key=name,
            text=f"interface {name}",
            remedy=f"ip link del {name}",
        )
        for name in names
        if name.startswith(BRIDGE_PREFIX) and name not in ours
    ]


def datapath_of(config: AgentConfig) -> DatapathType:
    if config.datapath != "auto":
        return config.datapath
    if Path("/sys/module/openvswitch").exists():
        return "system"
    modules = Path(f"/lib/modules/{platform.release()}/modules.dep")
    loadable = modules.exists() and "/openvswitch.ko" in modules.read_text()
    return "system" if loadable else "netdev"
