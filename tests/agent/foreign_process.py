"""Everybody else on a MemoryServer: edits what is ours, and makes objects that we must not
touch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from placewire.agent.contract.entries import (
    FLOW_PRIORITY,
    RULE_PRIORITY_BASE,
    TABLE_BASE,
    Route,
    Rule,
)
from tests.agent.memory_server import (
    MANAGEMENT,
    NICS,
    BridgeRow,
    FlowRow,
    Link,
    MemoryServer,
    Port,
    Qos,
    base_address,
    mac,
    sysctls_of,
)

_REBOOT, _SWITCH = "reboot", "switch"


@dataclass(frozen=True)
class _Made:
    """What somebody else made. ends_with: what takes it away beside the agent: a reboot, the end or
    a restart of ovs-vswitchd, or the loss of an interface, by its name."""

    name: str
    there: Callable[[], bool]
    ends_with: frozenset[str]


class Others:
    def __init__(self, rng: random.Random, server: MemoryServer) -> None:
        self._rng = rng
        self._server = server
        self._made: list[_Made] = []
        self.edited_sysctls: set[str] = set()
        server.bridges["br-ex"] = BridgeRow("br-ex", False, "eth9", 1500, {"eth9": _port("eth9")})
        server.switch_follows()
        self._keep_bridge("br-ex")
        self._make_rule(100)
        self._make_route(100, "10.98.0.0/16")

    def complaints(self) -> list[str]:
        return [f"{made.name}, which is not ours, was touched" for made in self._made
                if not made.there()]  # fmt: skip

    def after_a_reboot(self) -> None:
        self._gone_with(_REBOOT)

    def after_the_switch(self) -> None:
        """ovs-vswitchd ended, or came back: its flow tables, interfaces and queues are new."""
        self._gone_with(_SWITCH)

    def after_the_loss_of(self, interface: str) -> None:
        self._gone_with(interface)

    def _gone_with(self, what: str) -> None:
        self._made = [made for made in self._made if what not in made.ends_with]

    def make_their_own(self) -> str:
        """Returns what was made; "" where there is no place for it now."""
        makers: list[Callable[[], str]] = [
            lambda: self._make_rule(RULE_PRIORITY_BASE + self._rng.choice([0, 5])),
            lambda: self._make_route(TABLE_BASE + self._rng.choice([0, 5]), "10.97.0.0/16"),
            lambda: self._make_route(TABLE_BASE, "10.7.0.0/24"),
            self._make_flow,
            self._make_port,
            self._make_qos,
            self._make_bridge,
        ]
        return self._rng.choice(makers)()

    def make_inside(self) -> str:
        """Makes something of theirs on a bridge of ours, on its queues, in our tables or among our
        priorities. Returns what was made; "" where there is no place for it now."""
        makers: list[Callable[[], str]] = [
            self._make_flow,
            lambda: self._make_rule(RULE_PRIORITY_BASE + 7),
            self._make_address,
            self._make_route_over_ours,
            self._make_neighbour,
            self._make_interface,
            self._make_filter,
            self._make_leaf,
            self._make_root,
        ]
        return self._rng.choice(makers)()

    def use(self, nic: str) -> str:
        """The owner of a NIC that was given back uses it for something else, too. Returns what was
        made; "" where the NIC is not free, or is used so already."""
        server, address = self._server, "10.96.0.7/24"
        link = server.links.get(nic)
        if link is None or server.port(nic) is not None or link.theirs:
            return ""
        if base_address(nic) not in link.addresses:
            return ""
        link.addresses.append(address)
        link.theirs.add(address)
        return f"address {address} of {nic}"

    def use_another_adapter(self, nic: str) -> str:
        """The owner of another adapter that has the NIC's name takes our bridge off it, and uses it
        for something else. Returns what was made; "" while ovs-vswitchd does not run."""
        server, address = self._server, "10.95.0.7/24"
        if not server.switch_runs:
            return ""
        if (row := server.bridges.get(f"pw-{nic}")) is not None and row.ours:
            self._delete_bridge(row)
        link, settings = server.links[nic], dict.fromkeys(sysctls_of(nic), "2")
        link.up = True
        link.addresses.append(address)
        link.theirs.add(address)
        server.sysctls |= settings

        def there() -> bool:
            given_up = server.links.get(nic) is not link or address not in link.theirs
            return given_up or all(
                server.sysctls[name] == value or name in self.edited_sysctls
                for name, value in settings.items()
            )

        self._keep(f"the use of another adapter as {nic}", there, _REBOOT, nic)
        return f"address {address} and sysctls of another adapter, {nic}"

    def edit_ours(self) -> str:
        """Returns what was changed; "" where there is nothing of ours."""
        edits = [
            *self._edits_of_kernel(),
            *self._edits_of_switch(),
        ]
        if not edits:
            return ""
        what, edit = self._rng.choice(edits)
        edit()
        return what

    def get_out_of_the_way(self) -> None:
        """Does what an operator does who reads why the agent cannot go on."""
        server = self._server
        server.bridges = {
            name: row for name, row in server.bridges.items() if row.ours or name == "br-ex"
        }
        for row in server.bridges.values():
            if row.ours:
                row.ports = {name: port for name, port in row.ports.items() if port.ours}
                for port in row.ports.values():
                    if port.qos is not None and not port.qos.ours:
                        port.qos = None
        server.switch_follows()
        server.routes = [
            (route, ours) for route, ours in server.routes if ours or route.table == 100
        ]
        server.rules = [(rule, ours) for rule, ours in server.rules if ours or rule.priority == 100]
        for name, rows in server.flows.items():
            if name in server.bridges and server.bridges[name].ours:
                rows[:] = [row for row in rows if row.ours]
        server.their_routes = []
        for name in [n for n, link in server.links.items() if link.above]:
            server.remove_link(name)
        for link in server.links.values():
            link.addresses = [a for a in link.addresses if a not in link.theirs]
            link.theirs, link.neighbours, link.filters, link.leaves = set(), [], {}, {}
            if link.root is not None:
                link.without_root()
        self._made = [made for made in self._made if made.there()]

    # -- their own -------------------------------------------------------------------------------

    def _make_rule(self, priority: int) -> str:
        entry = (Rule(priority=priority, source="10.99.0.0/24", table=100), False)
        if entry not in self._server.rules:
            self._server.rules.append(entry)
            self._keep(f"rule {priority}", lambda: entry in self._server.rules, _REBOOT)
        return f"rule {priority}"

    def _make_route(self, table: int, destination: str) -> str:
        """Like `ip route add`: makes none where there is one already."""
        route = Route(table=table, destination=destination, interface=MANAGEMENT, source="")
        if any(held.key == route.key for held, _ in self._server.routes):
            return ""
        self._server.routes.append((route, False))
        self._keep(route.key, lambda: (route, False) in self._server.routes, _REBOOT)
        return route.key

    def _make_flow(self) -> str:
        """Makes a flow on a bridge of ours, with another match or priority."""
        rows = self._a_bridge_of_ours(lambda row: row.name in self._server.flows)
        if rows is None:
            return ""
        name, table = rows.name, self._server.flows[rows.name]
        flow = self._rng.choice(
            [
                FlowRow(False, FLOW_PRIORITY, "10.97.0.1", 0),
                FlowRow(False, 5, "10.7.0.2", 0),
                FlowRow(False, FLOW_PRIORITY, f"10.7.{rows.nic[-1]}.2", 0),
            ]
        )
        # Takes the place of ours, as `ovs-ofctl add-flow` does.
        table[:] = [
            row
            for row in table
            if (row.priority, row.destination) != (flow.priority, flow.destination)
        ]
        table.append(flow)
        self._keep(
            f"flow to {flow.destination} on {name}",
            lambda: flow in self._server.flows.get(name, ()),
            _REBOOT, _SWITCH, name,
        )  # fmt: skip
        return f"flow on {name}"

    def _make_port(self) -> str:
        row = self._a_bridge_of_ours(lambda row: "op0" not in row.ports)
        if row is None:
            return ""
        row.ports["op0"] = _port("op0")
        self._keep(f"under ours: port op0 of {row.name}", lambda: "op0" in row.ports
                   and self._server.bridges.get(row.name) is row, row.name)  # fmt: skip
        return f"port on {row.name}"

    def _make_qos(self) -> str:
        """Puts a QoS on our port, so that ours is no longer in use."""
        row = self._a_bridge_of_ours(
            lambda row: row.nic in row.ports and all(p.qos is None or p.qos.ours
                                                     for p in row.ports.values())
        )  # fmt: skip
        if row is None:
            return ""
        port, qos = row.ports[row.nic], Qos(False, 1_000_000)
        if port.qos is not None:
            self._server.stray.append(port.qos)
        port.qos = qos
        self._server.switch_follows()
        self._server.install(port.name)
        self._gone_with(port.name)  # Filters went with the queues that this QoS replaced.
        self._keep(f"under ours: QoS of {port.name}",
                   lambda: self._server.port(port.name) is port and port.qos is qos,
                   row.name)  # fmt: skip
        return f"QoS on {port.name}"

    # What MemoryNetwork itself watches: it says what goes with an effect of the agent.

    def _make_address(self) -> str:
        """Also one of the subnet of ours, which goes with ours where it came later."""
        row = self._a_bridge_of_ours(lambda row: row.name in self._server.links)
        if row is None:
            return ""
        rail = row.nic[-1:] or "0"
        choices = ["10.99.0.7/24", f"10.7.{rail}.77/24", f"fd00:{rail}::7/64"]
        address, link = self._rng.choice(choices), self._server.links[row.name]
        if address in link.addresses:
            return ""
        link.addresses.append(address)
        link.theirs.add(address)
        return f"address {address} on {row.name}"

    def _make_route_over_ours(self) -> str:
        """Also one with our address as its source, over another interface."""
        row = self._a_bridge_of_ours(
            lambda row: row.name in self._server.links and self._server.links[row.name].up
        )
        if row is None:
            return ""
        held = [a for a in self._server.links[row.name].addresses if a.startswith("10.7.")]
        lines = [f"10.60.0.0/16 dev {row.name}", f"10.61.0.0/16 dev {row.name} table 8000"]
        if held:
            host = held[0].split("/")[0]
            lines += [f"10.62.0.0/16 dev {via} src {host}"
                      for via in (row.name, MANAGEMENT, "br-ex")]  # fmt: skip
        line = self._rng.choice(lines)
        if line not in self._server.their_routes:
            self._server.their_routes.append(line)
        return f"route {line}"

    def _make_neighbour(self) -> str:
        row = self._a_bridge_of_ours(lambda row: row.name in self._server.links)
        if row is None or self._server.links[row.name].neighbours:
            return ""
        self._server.links[row.name].neighbours.append("10.7.0.9")
        return f"neighbour on {row.name}"

    def _make_interface(self) -> str:
        row = self._a_bridge_of_ours(lambda row: row.name in self._server.links)
        if row is None or "vlan7" in self._server.links:
            return ""
        self._server.links["vlan7"] = Link(mac("vlan7"), above=row.name)
        self._server.sysctls |= dict.fromkeys(sysctls_of("vlan7"), "0")
        return f"vlan7 on {row.name}"

    def _make_filter(self) -> str:
        link = self._a_shaped_link()
        if link is None:
            return ""
        link.filters[5] = "u32 filter of preference 5"
        return "filter on our HTB"

    def _make_leaf(self) -> str:
        link = self._a_shaped_link()
        if link is None or not link.classes:
            return ""
        link.leaves[self._rng.choice(list(link.classes))] = "fq_codel queueing discipline 10:"
        return "discipline on our class"

    def _make_root(self) -> str:
        """Puts a discipline in the place of our HTB, which takes all that is on that away."""
        link = self._a_shaped_link()
        if link is None or link.filters or link.leaves:
            return ""
        link.without_root()
        link.root = "tbf queueing discipline 8001:"
        return "discipline in the place of our HTB"

    def _a_shaped_link(self) -> Link | None:
        """A NIC that has our HTB."""
        ports = [(n, p) for n in NICS if (p := self._server.port(n)) and p.qos and p.qos.ours]
        links = [self._server.links[n] for n, _ in ports if n in self._server.links]
        shaped = [link for link in links if link.classes is not None]
        return self._rng.choice(shaped) if shaped else None

    def _make_bridge(self) -> str:
        """Makes a bridge, also with a name like ours."""
        name = self._rng.choice(["br-2", "pw-nic1", "pw-x"])
        if name in self._server.bridges:
            return ""
        self._server.bridges[name] = BridgeRow(name, False, "", 1500, {})
        self._server.switch_follows()
        self._keep_bridge(name)
        return f"bridge {name}"

    def _keep_bridge(self, name: str) -> None:
        row = self._server.bridges[name]
        ports = dict(row.ports)
        self._keep(
            f"bridge {name}",
            lambda: self._server.bridges.get(name) is row and not row.ours and row.ports == ports,
        )

    def _keep(self, name: str, there: Callable[[], bool], *ends_with: str) -> None:
        self._made.append(_Made(name, there, frozenset(ends_with)))

    def _a_bridge_of_ours(self, fits: Callable[[BridgeRow], bool]) -> BridgeRow | None:
        rows = [row for row in self._server.bridges.values() if row.ours and fits(row)]
        return self._rng.choice(rows) if rows else None

    # -- ours ------------------------------------------------------------------------------------

    def _edits_of_kernel(self) -> list[tuple[str, Callable[[], object]]]:
        server = self._server
        edits: list[tuple[str, Callable[[], object]]] = []
        for name in (sysctl for nic in NICS for sysctl in sysctls_of(nic)):
            if name in server.sysctls and server.bridges.keys() & {"pw-nic0", "pw-nic1"}:
                edits.append((name, lambda n=name: self._edit_sysctl(n)))
        edits += [("remove a rule of ours", lambda e=e: server.rules.remove(e))
                  for e in server.rules if e[1]]  # fmt: skip
        edits += [("remove a route of ours", lambda e=e: server.routes.remove(e))
                  for e in server.routes if e[1]]  # fmt: skip
        for nic in NICS:
            link = server.links.get(nic)
            if link is None or (port := server.port(nic)) is None or not port.ours:
                continue
            if link.classes:
                edits.append((f"tc class change on {nic}", lambda n=link: _slow_down(n)))
                edits.append((f"tc qdisc del on {nic}", lambda n=nic: self._remove_htb(n)))
            if link.classifiers:
                edits.append((f"tc filter del on {nic}", link.classifiers.pop))
        for name, rows in server.flows.items():
            if name in server.bridges and server.bridges[name].ours:
                edits += [("delete a flow of ours", lambda t=rows, r=r: t.remove(r))
                          for r in rows if r.ours]  # fmt: skip
                edits += [
                    (f"take {a} off {name}", lambda n=name, a=a: server.remove_address(n, a))
                    for a in server.links[name].addresses
                    if a not in server.links[name].theirs
                ]
        return edits

    def _edits_of_switch(self) -> list[tuple[str, Callable[[], object]]]:
        edits: list[tuple[str, Callable[[], object]]] = []
        for row in self._server.bridges.values():
            if row.ours and all(port.ours for port in row.ports.values()):
                edits.append((f"delete {row.name}", lambda r=row: self._delete_bridge(r)))
            port = row.ports.get(row.nic) if row.ours else None
            if port is not None and port.qos is not None and port.qos.ours and port.qos.queues:
                edits.append((f"a queue's rate on {row.nic}", lambda q=port.qos: self._rate(q)))
        return edits

    def _edit_sysctl(self, name: str) -> None:
        self._server.sysctls[name] = "7"
        self.edited_sysctls.add(name)

    def _delete_bridge(self, row: BridgeRow) -> None:
        del self._server.bridges[row.name]
        self._server.stray += [p.qos for p in row.ports.values() if p.qos and p.qos.ours]
        self._server.switch_follows()
        self._gone_with(row.name)

    def _remove_htb(self, nic: str) -> None:
        self._server.links[nic].without_root()
        self._gone_with(nic)

    def _rate(self, qos: Qos) -> None:
        queue_id, queue = self._rng.choice(list(qos.queues.items()))
        slower = {"min_bits_per_second": 1000, "max_bits_per_second": 2_000_000}
        qos.queues[queue_id] = queue.model_copy(update=slower)
        self._server.switch_follows()


def _port(name: str) -> Port:
    return Port(name, ours=False)


def _slow_down(link: object) -> None:
    first, found = next(iter(link.classes.items()))  # type: ignore[attr-defined]
    slower = {"min_bits_per_second": 1_000_000, "max_bits_per_second": 1_000_000}
    link.classes[first] = found.model_copy(update=slower)  # type: ignore[attr-defined]
