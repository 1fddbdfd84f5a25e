"""The Protocol `Network` over a MemoryServer, where each single effect is a step that may fail.

The order and the batches are those of agent/drivers/server.py, and the guards those of the drivers
that it calls: one transaction for the rows of bridges or queues, one bundle of flows per bridge,
one call per kernel object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby, pairwise

from placewire.agent.contract.entries import (
    FLOW_PRIORITY,
    Address,
    Bridge,
    Classifier,
    Flow,
    Queue,
    Route,
    Rule,
    Shaper,
    Sysctl,
)
from placewire.agent.contract.state import ForeignEntry, ObservedState, TakenOver
from placewire.agent.reconcile.command_words import identity_of_address, named
from placewire.agent.reconcile.diff import over_bridge
from placewire.agent.reconcile.effective import drifted_nics
from placewire.agent.reconcile.effects import EffectError, UnreadableError
from placewire.agent.reconcile.goes_with import goes_with_address, goes_with_move
from placewire.agent.reconcile.ledger import came_since
from placewire.agent.reconcile.route_identity import is_of_v6
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step
from placewire.agent.reconcile.unmarkable import Unmarked
from tests.agent.faults import Fault, Place, Striker
from tests.agent.memory_log import MemoryLog
from tests.agent.memory_server import BridgeRow, FlowRow, MemoryServer, Port, Qos


class MemoryNetwork:
    def __init__(self, server: MemoryServer, striker: Striker) -> None:
        self._server = server
        self._striker = striker
        self.log = MemoryLog(server)
        # What of others went with an effect of the agent, or was cut off by it.
        self.harmed: list[str] = []
        # The addresses of others on each NIC, as the agent last read them.
        self._theirs_seen: dict[str, set[str]] = {}

    def observe(self, sought: Unmarked) -> ObservedState:
        """Reads the database first, then the kernel, which may have changed in between."""
        self._read("the database")
        switch = self._server.read_switch()
        self._read("the kernel")
        if not self._server.switch_runs and any(
            b in self._server.links for b in self._server.bridges
        ):
            raise UnreadableError("ovs-vswitchd does not tell its flows")
        self._theirs_seen = {n: set(link.theirs) for n, link in self._server.links.items()}
        return self._server.read(switch, sought)

    def apply(self, steps: Sequence[Step], plan_name: str) -> None:
        for (collection, _), group in groupby(steps, key=_kind):
            try:
                _APPLY[collection](self, list(group))
            except LookupError as error:  # As the drivers tell that something has vanished.
                raise EffectError(f"{collection}: {error!r} is not there") from error

    def make_durable(self) -> None:
        what = "sync of the database's log"
        if self._striker.at(Place.DISK, what) in (Fault.DISK_FULL, Fault.WRITE_NOT_DURABLE):
            raise EffectError(f"{what}: injected")
        self.log.sync()

    def _read(self, what: str) -> None:
        if self._striker.at(Place.READ, what) is Fault.UNREADABLE:
            raise UnreadableError(f"{what} does not answer")

    def _do(self, what: str, effect: Callable[[], None]) -> None:
        """Does one effect on the system, which happens as a whole or not at all."""
        fault = self._striker.at(Place.EFFECT, what)
        if fault is Fault.CALL_FAILS:
            raise EffectError(f"{what}: injected")
        if fault is not Fault.CALL_WITHOUT_EFFECT:
            before = self._server.foreign_objects()
            self.log.begin()
            try:
                effect()
            finally:
                self.log.end()
                lost = before - self._server.foreign_objects()
                self.harmed += [f"{what}: took away {each}" for each in sorted(map(str, lost))]
        if fault is Fault.CALL_DONE_AND_FAILED:
            raise EffectError(f"{what}: no answer")

    # -- Open vSwitch ----------------------------------------------------------------------------

    def _unused_rows(self, _: list[EntryStep]) -> None:
        self._do("unused rows", self._server.stray.clear)

    def _follow(self) -> None:
        """Called after a write to the database, where it stays whether or not ovs-vswitchd takes it
        in."""
        self._server.switch_follows()
        _require(self._server.switch_runs, "ovs-vswitchd does not take it in")

    def _bridges(self, steps: list[EntryStep]) -> None:
        wanted = [step.after for step in steps if isinstance(step.after, Bridge)]
        if wanted:
            self._do("add bridges", lambda: self._write_bridges(steps))
            for nic in [s.after.nic for s in steps if s.unopened and isinstance(s.after, Bridge)]:
                self._do(f"open {nic} anew", lambda nic=nic: self._open_anew(nic))
            for bridge in wanted:
                for name in (bridge.nic, bridge.name):
                    self._do(f"link {name} up", lambda name=name: self._bring_up(name))
        gone = {step.entry.key: step.with_it for step in steps if step.after is None}
        if gone:
            self._do("remove bridges", lambda: self._remove_bridges(gone))
            for name, own in gone.items():
                if name in self._server.links:
                    self._do(f"remove {name}", lambda n=name, own=own: self._remove_left(n, own))

    def _open_anew(self, nic: str) -> None:
        _require(nic in self._server.links, f"NIC {nic} is gone")
        _require_nothing(self._server.on_queues(nic))
        self._server.open_anew(nic)

    def _write_bridges(self, steps: list[EntryStep]) -> None:
        wanted = [(s.after, s.mark) for s in steps if isinstance(s.after, Bridge)]
        for bridge, _ in wanted:
            _require(bridge.nic in self._server.links, f"NIC {bridge.nic} is gone")
            row = self._server.bridges.get(bridge.name)
            _require(row is None or row.ours, f"bridge {bridge.name} is not ours")
            port = self._server.port(bridge.nic)
            _require(
                port is None or (row is not None and bridge.nic in row.ports),
                f"NIC {bridge.nic} is another bridge's port",
            )
        for bridge, mark in wanted:
            if bridge.name not in self._server.bridges:
                seen = sorted(self._theirs_seen.get(bridge.nic, ()))
                self.harmed += [f"{bridge.nic} was taken with {address} on it" for address in seen]
            row = self._server.bridges.setdefault(
                bridge.name, BridgeRow(bridge.name, True, bridge.nic, bridge.mtu_bytes, {})
            )
            row.nic, row.mtu_bytes = bridge.nic, bridge.mtu_bytes
            row.held = mark or row.held
            if bridge.nic not in row.ports:
                row.ports[bridge.nic] = Port(bridge.nic, True)
                self._server.links[bridge.nic].opened = True
        self._follow()

    def _remove_bridges(self, gone: Mapping[str, Collection[str]]) -> None:
        rows = [self._server.bridges[n] for n in gone if n in self._server.bridges]
        for row in rows:
            if row.name in self._server.links:
                _require_nothing(self._server.on_bridge(row.name, gone[row.name]))
            for port in row.ports.values():
                ours = port.ours and (port.qos is None or port.qos.ours)
                _require(ours, f"{port.name} of {row.name}, or its QoS, is not ours")
        if not rows:
            return
        for row in rows:
            del self._server.bridges[row.name]
            self._server.stray += [p.qos for p in row.ports.values() if p.qos and p.qos.ours]
        self._follow()

    def _remove_left(self, name: str, own: Collection[str]) -> None:
        in_use = self._server.switch_runs and name not in self._server.left
        _require(not in_use, f"{name}: device or resource busy")
        _require_nothing(self._server.on_bridge(name, own))
        self._server.remove_link(name)

    def _bring_up(self, name: str) -> None:
        if name in self._server.links:
            self._server.set_up(name, True)

    def _queues(self, steps: list[EntryStep]) -> None:
        self._do("queues", lambda: self._write_queues(steps))
        replaced = [s.entry for s in steps if s.action == "replace"]
        nics = {e.nic for e in replaced if isinstance(e, Shaper)}
        queues = [e for e in replaced if isinstance(e, Queue) and e.nic in nics]
        if queues and self._drifted(queues):
            self._do("classes again", self._follow)
        if queues and (left := self._drifted(queues)):
            ports = [(n, p) for n in left if (p := self._server.port(n)) and p.qos and p.qos.ours]
            rows = {name: port.qos for name, port in ports}
            self._do("take the queues off", lambda: self._assign(rows, there=False))
            self._do("put the queues back", lambda: self._assign(rows, there=True))

    def _drifted(self, queues: list[Queue]) -> frozenset[str]:
        links = [self._server.links[n] for n in {q.nic for q in queues} if n in self._server.links]
        return drifted_nics(queues, [c for link in links for c in (link.classes or {}).values()])

    def _assign(self, rows: dict[str, Qos | None], *, there: bool) -> None:
        for nic, qos in rows.items():
            port = self._server.port(nic)
            assert qos is not None
            if not there and nic in self._server.links:
                _require_nothing(self._server.on_queues(nic))
            _require(port is not None and port.qos is (None if there else qos), f"{nic} changed")
            assert port is not None
            port.qos = qos if there else None
            if there:
                self._server.stray.remove(qos)
            else:
                self._server.stray.append(qos)
        self._follow()
        for nic in rows:
            self._server.install(nic)

    def _write_queues(self, steps: list[EntryStep]) -> None:
        ports = {step.entry.nic: self._server.port(step.entry.nic) for step in steps}  # type: ignore[union-attr]
        for step in steps:
            if isinstance(step.after, Shaper):
                port = ports[step.after.nic]
                _require(port is not None and port.ours, f"{step.after.nic} is no port of ours")
                _require(port.qos is None or port.qos.ours, f"{port.name} has a foreign QoS")  # type: ignore[union-attr]
        self._require_free(steps)
        new = []
        for step in steps:
            port = ports[step.entry.nic]  # type: ignore[union-attr]
            if isinstance(step.after, Shaper):
                assert port is not None
                if port.qos is None:
                    port.qos = Qos(True, step.after.max_bits_per_second)
                    new.append(port.name)
                port.qos.rate = step.after.max_bits_per_second
        for step in steps:
            port = ports[step.entry.nic]  # type: ignore[union-attr]
            if isinstance(step.entry, Queue) and port and port.qos and port.qos.ours:
                port.qos.queues.pop(step.entry.queue_id, None)
                if isinstance(step.after, Queue):
                    port.qos.queues[step.entry.queue_id] = step.after
        for step in steps:
            port = ports[step.entry.nic]  # type: ignore[union-attr]
            gone = isinstance(step.before, Shaper) and step.after is None
            if gone and port is not None and port.qos is not None and port.qos.ours:
                port.qos = None
        self._follow()
        for nic in new:
            self._server.install(nic)

    def _require_free(self, steps: list[EntryStep]) -> None:
        """Others have nothing on the shapers and queues that go, nor where a shaper comes."""
        shapers = {
            s.entry.nic for s in steps if isinstance(s.entry, Shaper) and s.action != "replace"
        }
        gone = {s.entry.key for s in steps if isinstance(s.entry, Queue) and s.after is None}
        for nic in {s.entry.nic for s in steps} & self._server.links.keys():  # type: ignore[union-attr]
            found = self._server.on_queues(nic)
            _require_nothing([f for f in found if nic in shapers or f.on in gone])

    def _flows(self, steps: list[EntryStep]) -> None:
        for bridge in dict.fromkeys(step.entry.bridge for step in steps):  # type: ignore[union-attr]
            own = [s for s in steps if s.entry.bridge == bridge]  # type: ignore[union-attr]
            self._do(f"flows of {bridge}", lambda own=own, b=bridge: self._bundle(b, own))

    def _bundle(self, bridge: str, steps: list[EntryStep]) -> None:
        """Refused as a whole where a foreign flow has the match and priority of a flow to add: each
        add is tried first."""
        there = self._server.switch_runs and bridge in self._server.flows
        _require(there, f"{bridge}.mgmt: no such socket")
        rows = self._server.flows[bridge]
        adds = {step.after.destination for step in steps if isinstance(step.after, Flow)}
        theirs = {r.destination for r in rows if not r.ours and r.priority == FLOW_PRIORITY}
        _require(not adds & theirs, f"{bridge}: flows that are not ours match packets of ours")
        for step in steps:
            flow = step.entry
            assert isinstance(flow, Flow)
            rows[:] = [
                row
                for row in rows
                if (row.priority, row.destination) != (FLOW_PRIORITY, flow.destination)
                or (step.after is None and not row.ours)
            ]
            if step.after is not None:
                rows.append(FlowRow(True, FLOW_PRIORITY, flow.destination, flow.queue_id))

    # -- the kernel ------------------------------------------------------------------------------

    def _each(self, steps: list[EntryStep], change: Callable[[EntryStep], None]) -> None:
        for step in steps:
            self._do(f"{step.action} {step.entry.key}", lambda step=step: change(step))

    def _addresses(self, steps: list[EntryStep]) -> None:
        self._each(steps, self._address)

    def _address(self, step: EntryStep) -> None:
        entry = step.entry
        assert isinstance(entry, Address)
        link = self._server.links.get(entry.interface)
        _require(link is not None, f"{entry.key}: the interface is gone")
        assert link is not None
        if step.after is None:
            _require(entry.address in link.addresses, f"{entry.key}: no such address")
            there = self._server.on_bridge(entry.interface, {entry.address, *step.with_it})
            is_last = [a for a in link.addresses if ":" not in a] == [entry.address]
            found = [*there, *self._elsewhere(entry)]
            _require_nothing([*goes_with_address(entry, found, is_last=is_last)])
            self._server.remove_address(entry.interface, entry.address)
        elif entry.address not in link.addresses:
            link.addresses.append(entry.address)

    def _elsewhere(self, address: Address) -> list[ForeignEntry]:
        """The routes of others; none where they stay, as another interface has the address too."""
        host = address.address.split("/")[0]
        others = (link for name, link in self._server.links.items() if name != address.interface)
        if any(held.split("/")[0] == host for link in others for held in link.addresses):
            return []
        lines = self._server.their_routes
        return [ForeignEntry(collection="routes", key=line, text=line) for line in lines]

    def _sysctls(self, steps: list[EntryStep]) -> None:
        def change(step: EntryStep) -> None:
            assert isinstance(step.after, Sysctl)
            _require(step.entry.key in self._server.sysctls, f"{step.entry.key}: no such file")
            self._server.sysctls[step.entry.key] = step.after.value

        self._each(steps, change)

    def _classifiers(self, steps: list[EntryStep]) -> None:
        for step in steps:
            if step.after is not None:
                self._do(f"add {step.entry.key}", lambda s=step: self._add_classifier(s.after))
            if step.before is not None:
                self._do(f"remove {step.entry.key}", lambda s=step: self._remove_classifier(s))

    def _add_classifier(self, classifier: Classifier) -> None:
        link = self._server.links.get(classifier.nic)
        _require(link is not None and link.classes is not None, f"{classifier.nic} has no HTB")
        assert link is not None
        link.classifiers.append(classifier)

    def _remove_classifier(self, step: EntryStep) -> None:
        """Removes one that stood there before: where both are alike, the new one is the last."""
        nic = step.entry.nic  # type: ignore[union-attr]
        _require(nic in self._server.links, f"{nic} is gone")
        held = self._server.links[nic].classifiers
        kept = held[-1:] if step.after is not None else []
        former = held[: len(held) - len(kept)]
        held[:] = [c for c in former if c != step.before] + kept

    def _routes(self, steps: list[EntryStep]) -> None:
        self._each(steps, self._route)

    def _route(self, step: EntryStep) -> None:
        route = step.entry
        assert isinstance(route, Route)
        link = self._server.links.get(route.interface)
        if step.after is None:
            if link is not None:
                _require((route, True) in self._server.routes, f"{route.key}: no such route")
                self._server.routes.remove((route, True))
            return
        _require(link is not None and link.up, f"{route.key}: {route.interface} is not up")
        others = [(r, ours) for r, ours in self._server.routes if (r, ours) != (step.before, True)]
        _require(all(held.key != route.key for held, _ in others), f"{route.key}: exists")
        local = {a.split("/")[0] for each in self._server.links.values() for a in each.addresses}
        _require(route.source in local, f"{route.key}: source {route.source} is not local")
        self._server.routes = [*others, (route, True)]

    def _rules(self, steps: list[EntryStep]) -> None:
        for step in steps:
            if step.after is not None:
                self._do(f"add rule {step.entry.key}", lambda s=step: self._add_rule(s.after))
            if step.before is not None:
                self._do(f"remove rule {step.entry.key}", lambda s=step: self._del_rule(s.before))

    def _add_rule(self, rule: Rule) -> None:
        _require((rule, True) not in self._server.rules, f"rule {rule.key}: exists")
        self._server.rules.append((rule, True))

    def _del_rule(self, rule: Rule) -> None:
        _require((rule, True) in self._server.rules, f"rule {rule.key}: no such rule")
        self._server.rules.remove((rule, True))

    def _nic_moves(self, steps: list[NicStep]) -> None:
        """Tries every move, and says at the end which failed."""
        failures = []
        for step in steps:
            try:
                calls = self._to_bridge(step) if step.direction == "to bridge" else self._back(step)
            except EffectError as error:
                failures.append(str(error))
                continue
            for what, call in calls:
                try:
                    self._do(what, call)
                except EffectError as error:
                    failures.append(str(error))
        if failures:
            raise EffectError("; ".join(failures))

    def _to_bridge(self, step: NicStep) -> list[tuple[str, Callable[[], None]]]:
        nic, held = step.held.nic, step.held
        for facts in self._server._nics():
            if facts.name == nic:
                _require_nothing([*goes_with_move(held, facts)])
        there = list(self._server.main_routes)
        moved = [over_bridge(route, nic, step.bridge) for route in held.routes]
        on_nic, on_bridge = (
            self._server.links[name].addresses if name in self._server.links else ()
            for name in (nic, step.bridge)
        )
        of_v6 = [a.split(maxsplit=1)[0] for a in held.addresses if is_of_v6(a)]
        coming = [a for a in of_v6 if a not in on_bridge]
        leaving = [a for a in held.addresses if not is_of_v6(a) or a.split()[0] in on_nic]
        return [
            *((f"del {r}", lambda r=r: self._del_main(r)) for r in held.routes if r in there),
            *((f"give {a} {step.bridge}", lambda a=a: self._give(step.bridge, a)) for a in coming),
            *((f"del {a} {nic}", lambda a=a: self._del_from_nic(nic, a)) for a in leaving),
            *((f"add {r}", lambda r=r: self._add_main(r)) for r in moved if r not in there),
        ]

    def _back(self, step: NicStep) -> list[tuple[str, Callable[[], None]]]:
        nic, held = step.held.nic, step.held
        link = self._server.links.get(nic)
        _require(link is not None, f"NIC {nic} is gone")
        assert link is not None
        _require(held.mac in ("", link.mac), f"NIC {nic} is another one now")
        there = list(self._server.main_routes)
        have = {identity_of_address(a) for a in link.address_commands}
        missing = [a for a in held.addresses if identity_of_address(a) not in have]
        complete = {named(a) for a in link.address_commands}
        of_v6 = [a for a in held.addresses if is_of_v6(a) and named(a) not in complete]
        given = [one for a in of_v6 for one in (f"{a} nodad", a)]
        return [
            (f"link {nic}", lambda: self._server.set_up(nic, self._stays_up(held))),
            *([(f"qdisc of {nic}", link.without_root)] if self._is_left(nic) else []),
            *(
                (f"add {a} {nic}", lambda a=a: link.give_address(a))
                for a in missing
                if not is_of_v6(a)
            ),
            *((f"give {a} {nic}", lambda a=a: self._give(nic, a)) for a in given),
            *((f"add {r}", lambda r=r: self._add_main(r)) for r in held.routes if r not in there),
        ]

    def _give(self, interface: str, command: str) -> None:
        link = self._server.links.get(interface)
        _require(link is not None and link.up, f"{command}: {interface} is not up")
        assert link is not None
        link.give_address(command)

    def _stays_up(self, held: TakenOver) -> bool:
        return held.was_up or bool(came_since(held, self._server.standing_on(held.nic)))

    def _is_left(self, nic: str) -> bool:
        """Whether the NIC has an HTB that ovs-vswitchd left behind."""
        return self._server.port(nic) is None and self._server.links[nic].classes is not None

    def _del_from_nic(self, nic: str, command: str) -> None:
        link, address = self._server.links.get(nic), command.split(maxsplit=1)[0]
        _require(link is not None and address in link.addresses, f"{nic} has no {address}")
        self._server.remove_address(nic, address)

    def _del_main(self, line: str) -> None:
        _require(line in self._server.main_routes, f"{line}: no such route")
        self._server.main_routes.remove(line)

    def _add_main(self, line: str) -> None:
        said = dict(pairwise(line.split()))
        link = self._server.links.get(said["dev"])
        _require(line not in self._server.main_routes, f"{line}: exists")
        _require(link is not None and link.up, f"{line}: {said['dev']} is not up")
        by = said.get("via")
        _require(
            by is None or self._server.reaches(by, said["dev"]), f"{line}: its gateway is invalid"
        )
        self._server.main_routes.append(line)


_APPLY: dict[str, Callable[[MemoryNetwork, list], None]] = {
    "bridges": MemoryNetwork._bridges,
    "queues": MemoryNetwork._queues,
    "flows": MemoryNetwork._flows,
    "addresses": MemoryNetwork._addresses,
    "sysctls": MemoryNetwork._sysctls,
    "classifiers": MemoryNetwork._classifiers,
    "routes": MemoryNetwork._routes,
    "rules": MemoryNetwork._rules,
    "nics": MemoryNetwork._nic_moves,
    "unused rows": MemoryNetwork._unused_rows,
}


def _kind(step: Step) -> tuple[str, bool]:
    together = "queues" if step.collection == "shapers" else step.collection
    return together, isinstance(step, EntryStep) and step.after is None


def _require_nothing(found: Sequence[ForeignEntry]) -> None:
    _require(not found, "; ".join(f"{f.text} is on {f.on}, and not ours" for f in found))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise EffectError(otherwise)
