"""A server's kernel and Open vSwitch database as values, for drivers in memory.

The rows of the database outlive a reboot, and memory_log.py says which of them a power cut; the
kernel's state follows them (`switch_follows`) as ovs-vswitchd makes it. What the kernel does by
itself is here as well: what goes with an interface, with an address, with a bridge. Nothing in here
fails or waits; memory_drivers.py does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from placewire.agent.contract.entries import (
    BRIDGE_PREFIX,
    FLOW_PRIORITY,
    LEAST_CLASS_BITS_PER_SECOND,
    RULE_PRIORITIES,
    TABLES,
    Address,
    Bridge,
    Classifier,
    Flow,
    Queue,
    Route,
    Rule,
    Shaper,
    Sysctl,
    UnusedRow,
)
from placewire.agent.contract.state import (
    EffectiveQueue,
    ForeignEntry,
    NicFacts,
    ObservedState,
    TakenOver,
    UnopenedNic,
)
from placewire.agent.reconcile.foreign_kinds import (
    DISCIPLINES,
    FILTERS,
    INTERFACE_RULES,
    INTERFACES,
    NEIGHBOURS,
    PORTS,
    SHAPERS,
)
from placewire.agent.reconcile.route_identity import is_of_v6
from placewire.agent.reconcile.unmarkable import Unmarked

MANAGEMENT = "mgmt"
BASE_V6 = "fd07::1/64"
NICS = ("nic0", "nic1")
SYSCTLS = ("net.ipv4.conf.{}.arp_ignore", "net.ipv4.conf.{}.rp_filter")


@dataclass
class Qos:
    ours: bool
    rate: int
    queues: dict[int, Queue] = field(default_factory=dict)


@dataclass
class Port:
    name: str
    ours: bool
    qos: Qos | None = None


@dataclass
class BridgeRow:
    name: str
    ours: bool
    nic: str
    mtu_bytes: int
    ports: dict[str, Port]
    held: TakenOver | None = None  # the mark of what its NIC held


@dataclass
class FlowRow:
    ours: bool
    priority: int
    destination: str | None
    queue_id: int


@dataclass
class Link:
    mac: str
    internal: bool = False
    up: bool = True
    mtu_bytes: int = 1500
    addresses: list[str] = field(default_factory=list)  # each with its length
    classes: dict[int, EffectiveQueue] | None = None  # None: there is no HTB
    classifiers: list[Classifier] = field(default_factory=list)
    # Of others: which of the addresses, neighbours, what is on the HTB (filters by preference,
    # disciplines by queue), and a root discipline, which on a NIC is in the place of the HTB.
    theirs: set[str] = field(default_factory=set)
    # Which of the addresses have `noprefixroute`: the kernel makes no route with them.
    without_route: set[str] = field(default_factory=set)
    nodad: set[str] = field(default_factory=set)  # which have that flag
    neighbours: list[str] = field(default_factory=list)
    filters: dict[int, str] = field(default_factory=dict)
    leaves: dict[int, str] = field(default_factory=dict)
    root: str | None = None
    has_qos: bool = False  # whether ovs-vswitchd has put a root there
    above: str | None = None  # the interface that it is made on, and goes with
    # Whether it was renamed: ovs-vswitchd does not know it by this name, and leaves its queues.
    renamed: bool = False
    opened: bool = True  # by ovs-vswitchd, where it is a port

    @property
    def address_commands(self) -> tuple[str, ...]:
        flags = (("noprefixroute", self.without_route), ("nodad", self.nodad))
        return tuple(
            " ".join([a, *(flag for flag, those in flags if a in those)]) for a in self.addresses
        )

    def give_address(self, command: str) -> None:
        """As `ip address replace` does."""
        address, *flags = command.split()
        if address not in self.addresses:
            self.addresses.append(address)
        for flag, those in (("noprefixroute", self.without_route), ("nodad", self.nodad)):
            if flag in flags:
                those.add(address)
            else:
                those.discard(address)

    def drop_address(self, address: str) -> None:
        self.addresses.remove(address)
        for those in (self.theirs, self.without_route, self.nodad):
            those.discard(address)

    def without_root(self) -> None:
        """What is on a root discipline goes with it."""
        self.classes, self.root = None, None
        self.classifiers, self.filters, self.leaves = [], {}, {}


class MemoryServer:
    """Has nic0 and nic1 with an address each, a management NIC, and on nic0 a gateway's route, and
    an address and a gateway's route of IPv6."""

    def __init__(self) -> None:
        self.bridges: dict[str, BridgeRow] = {}
        self.stray: list[Qos] = []
        self.boot()

    def boot(self) -> None:
        """Makes what the kernel and the distribution's configuration make of an empty machine, and
        what ovs-vswitchd makes of its database."""
        self.switch_runs = True
        # Interfaces that this ovs-vswitchd did not make itself, and whose bridge is gone.
        self.left: set[str] = set()
        self.links = {
            **{nic: Link(mac(nic), addresses=list(base_addresses(nic))) for nic in NICS},
            MANAGEMENT: Link(mac(MANAGEMENT), addresses=["10.9.0.1/24"]),
        }
        self.sysctls = {sysctl: "0" for name in self.links for sysctl in sysctls_of(name)}
        self.main_routes = list(base_routes("nic0"))
        self.their_routes: list[str] = []  # as `ip route` prints them
        self.rules: list[tuple[Rule, bool]] = []  # with whether it is ours
        self.interface_rules: list[str] = []  # others' that name an interface, as `ip` takes them
        self.routes: list[tuple[Route, bool]] = []
        self.flows: dict[str, list[FlowRow]] = {}
        self.switch_restarts()

    # -- what ovs-vswitchd does ----------------------------------------------------------------

    def switch_follows(self) -> None:
        """Called after each change of the database: interfaces of bridges come and go, and all
        classes are written again. A queueing discipline that someone removed is not put back."""
        if not self.switch_runs:
            return
        for name in self._without_bridge() - self.left:
            self.remove_link(name)
        self.left -= self.bridges.keys()
        for name, row in self.bridges.items():
            if name not in self.links:
                self.links[name] = Link(mac(name), internal=True, up=False)
                self.sysctls |= dict.fromkeys(sysctls_of(name), "0")
            self.links[name].mtu_bytes = row.mtu_bytes
        # Empty where it takes up an interface that a former ovs-vswitchd left.
        self.flows = {name: self.flows.get(name, []) for name in self.bridges}
        ports = {port.name: port for row in self.bridges.values() for port in row.ports.values()}
        for name, link in self.links.items():
            qos = ports[name].qos if name in ports else None
            if link.renamed and name not in ports:
                continue
            link.renamed = False
            if qos is None:
                if link.has_qos:
                    link.without_root()
                    link.has_qos = False
            elif link.classes is not None:
                link.classes = _classes(qos)
                link.leaves = {n: text for n, text in link.leaves.items() if n in link.classes}

    def install(self, nic: str) -> None:
        """Makes the HTB of a port that has just got its QoS."""
        port = self.port(nic)
        if self.switch_runs and port is not None and port.qos is not None and nic in self.links:
            link = self.links[nic]
            if link.classes is None:
                link.without_root()
            link.classes, link.has_qos = _classes(port.qos), True

    def switch_restarts(self) -> None:
        """Its interfaces are made anew, and its flow tables are empty; queues are as in the
        database."""
        for name in [n for n, link in self.links.items() if link.internal]:
            self.remove_link(name)
        self.switch_follows()
        for nic in NICS:
            self.install(nic)
        self._open_all()

    def _open_all(self) -> None:
        for link in self.links.values():
            link.opened = True

    def open_anew(self, nic: str) -> None:
        """ovs-vswitchd closes and opens the NIC: its queues are made anew."""
        if self.switch_runs:
            self.links[nic].without_root()
            self.links[nic].opened = True
            self.install(nic)

    def switch_dies(self) -> None:
        """Interfaces and queues stay in the kernel; the flow tables are lost with the process."""
        self.switch_runs = False
        self.flows = {name: [] for name in self.flows}

    def switch_comes_back(self) -> None:
        """A new ovs-vswitchd takes up the interfaces of the bridges that exist, and no other."""
        self.switch_runs = True
        self.left = self._without_bridge()
        self.switch_follows()
        for nic in NICS:
            self.install(nic)
        self._open_all()

    def _without_bridge(self) -> set[str]:
        return {n for n, link in self.links.items() if link.internal and n not in self.bridges}

    def port(self, name: str) -> Port | None:
        ports = (row.ports.get(name) for row in self.bridges.values())
        return next((port for port in ports if port is not None), None)

    # -- what the kernel does by itself ----------------------------------------------------------

    def remove_link(self, name: str) -> None:
        del self.links[name]
        self.left.discard(name)
        self._remove_routes(name)
        for sysctl in sysctls_of(name):
            self.sysctls.pop(sysctl, None)
        self.flows.pop(name, None)
        for above in [n for n, link in self.links.items() if link.above == name]:
            self.remove_link(above)

    def _remove_routes(self, name: str) -> None:
        self.routes = [(r, ours) for r, ours in self.routes if r.interface != name]
        self.main_routes = [line for line in self.main_routes if not is_over(line, name)]
        self.their_routes = [line for line in self.their_routes if not is_over(line, name)]

    def set_up(self, name: str, up: bool) -> None:
        """Routes, neighbours and IPv6 addresses of an interface that goes down are lost."""
        link = self.links[name]
        link.up = up
        if not up:
            self._remove_routes(name)
            link.neighbours.clear()
            for address in [a for a in link.addresses if ":" in a]:
                link.drop_address(address)

    def _without_ipv4(self, name: str) -> None:
        def stays(line: str) -> bool:
            return is_of_v6(line) or not is_over(line, name)

        self.routes = [(r, ours) for r, ours in self.routes if r.interface != name]
        self.main_routes = [*filter(stays, self.main_routes)]
        self.their_routes = [*filter(stays, self.their_routes)]
        self.links[name].neighbours.clear()

    def remove_address(self, interface: str, address: str) -> None:
        """Routes that have the address as their source go with it, and the later addresses of its
        subnet with the first one of IPv4; with the last one all routes and neighbours there."""
        link = self.links[interface]
        subnet = [a for a in link.addresses if same_subnet(a, address)]
        for one in subnet if subnet[0] == address and ":" not in address else [address]:
            link.drop_address(one)
        if ":" not in address and all(":" in a for a in link.addresses):
            self._without_ipv4(interface)
        gone = address.split("/", maxsplit=1)[0]
        self.routes = [(r, ours) for r, ours in self.routes if r.source != gone]
        if not any(a.split("/")[0] == gone for one in self.links.values() for a in one.addresses):
            source = f" src {gone} "
            self.their_routes = [r for r in self.their_routes if source not in f"{r} "]
            self.main_routes = [r for r in self.main_routes if source not in f"{r} "]

    def reaches(self, gateway: str, interface: str) -> bool:
        """Whether the kernel takes a route by this gateway over this interface."""
        link = self.links[interface]
        plain = (a for a in link.addresses if a not in link.without_route)
        direct = (r for r in self.main_routes if is_over(r, interface) and " via " not in r)
        subnets = [*(ip_interface(a).network for a in plain), *(_subnet(r) for r in direct)]
        return any(ip_address(gateway) in subnet for subnet in subnets)

    def network_manager_configures(self, nic: str) -> None:
        """Its address as NetworkManager sets it, and the route that it makes for its subnet."""
        self.links[nic].without_route.add(base_address(nic))
        self.main_routes.insert(0, subnet_route(nic))

    def nic_vanishes(self, nic: str) -> None:
        if nic in self.links:
            self.remove_link(nic)

    def nic_comes_back(self, nic: str, address: str | None = None) -> None:
        """The NIC is bare and down: nobody gives it its address. ovs-vswitchd makes the queues of a
        port of its name, and does not open it, as on the userspace datapath. address: its MAC,
        where that is another one."""
        if nic not in self.links:
            self.links[nic] = Link(address or mac(nic), up=False, opened=self.port(nic) is None)
            self.sysctls |= dict.fromkeys(sysctls_of(nic), "0")
            self.switch_follows()
            self.install(nic)

    def nic_renamed(self, nic: str, name: str) -> None:
        """Addresses, routes, sysctls and queues stay on the NIC under its other name. ovs-vswitchd
        follows names."""
        link = self.links.pop(nic)
        link.renamed = True
        self.links[name] = link
        self.routes = [
            (r.model_copy(update={"interface": name}) if r.interface == nic else r, ours)
            for r, ours in self.routes
        ]
        self.main_routes = [_over(line, nic, name) for line in self.main_routes]
        for former, present in zip(sysctls_of(nic), sysctls_of(name), strict=True):
            self.sysctls[present] = self.sysctls.pop(former)
        self.switch_follows()
        self.install(name)

    def configure(self, nic: str) -> None:
        """Does what the distribution's network service does for a NIC that has just appeared."""
        link = self.links[nic]
        link.up = True
        link.addresses += [a for a in base_addresses(nic) if a not in link.addresses]
        self.main_routes += [r for r in base_routes(nic) if r not in self.main_routes]

    # -- reading ---------------------------------------------------------------------------------

    def read_switch(self) -> dict[str, object]:
        """What the database says, as fields of an ObservedState."""
        ours = [row for row in self.bridges.values() if row.ours]
        ports = [(row, port) for row in ours for port in row.ports.values()]
        shaped = [
            (p.name, p.qos)
            for row in self.bridges.values()
            for p in row.ports.values()
            if p.qos is not None and p.qos.ours
        ]
        foreign = [
            *(
                ForeignEntry(collection="bridges", key=row.name, text=f"bridge {row.name}")
                for row in self.bridges.values()
                if not row.ours and row.name.startswith(BRIDGE_PREFIX)
            ),
            *(
                ForeignEntry(
                    collection=PORTS,
                    key=row.name,
                    text=f"port {port.name}",
                    on=row.name,
                    remedy=f"ovs-vsctl del-port {row.name} {port.name}",
                )
                for row, port in ports
                if not port.ours
            ),
            *(
                ForeignEntry(
                    collection=SHAPERS,
                    key=port.name,
                    text=f"QoS of {port.name}",
                    on=port.name,
                    remedy=f"ovs-vsctl clear port {port.name} qos",
                )
                for _, port in ports
                if port.ours and port.qos is not None and not port.qos.ours
            ),
        ]
        return {
            "bridges": tuple(
                Bridge(
                    name=row.name,
                    nic=row.nic if row.nic in row.ports else "",
                    datapath="netdev",
                    mtu_bytes=row.mtu_bytes,
                )
                for row in ours
            ),
            "shapers": tuple(Shaper(nic=n, max_bits_per_second=q.rate) for n, q in shaped),
            "queues": tuple(queue for _, q in shaped for queue in q.queues.values()),
            "foreign": tuple(foreign),
            "internal": tuple(self.bridges),
            "held": tuple(
                row.held.model_copy(update={"bridge": row.name})
                for row in ours
                if row.held is not None
            ),
            "unused_rows": tuple(
                UnusedRow(table="QoS", uuid=str(number)) for number in range(len(self.stray))
            ),
        }

    def read(self, switch: dict[str, object], sought: Unmarked) -> ObservedState:
        """The kernel's part as it is now, added to `switch`, which was read of the database
        before."""
        bridges: Collection[Bridge] = switch["bridges"]  # type: ignore[assignment]
        names = [bridge.name for bridge in bridges if bridge.name in self.links]
        left = {n for n, link in self.links.items() if link.internal}
        left -= {*switch["internal"]}
        nics = [bridge.nic for bridge in bridges if bridge.nic in self.links]
        down = [f"bridge {b.name} is down" for b in bridges if not self._is_up(b.name)]
        return ObservedState(
            bridges=(
                *bridges,
                *(
                    Bridge(
                        name=name, nic="", datapath="netdev", mtu_bytes=self.links[name].mtu_bytes
                    )
                    for name in sorted(left & set(sought.bridges))
                ),
            ),
            shapers=switch["shapers"],
            queues=switch["queues"],
            addresses=tuple(
                Address(interface=n, address=a)
                for n in names
                for a in self.links[n].addresses
                if ":" not in a
                if sought.addresses is None or (n, a) in sought.addresses
            ),
            moved_addresses=tuple(
                Address(interface=n, address=a)
                for n in names
                for a in self.links[n].addresses
                if ":" in a
                if sought.addresses is None or (n, a) in sought.addresses
            ),
            sysctls=tuple(
                Sysctl(name=n, value=self.sysctls[n])
                for n in sorted(sought.sysctls)
                if n in self.sysctls
            ),
            flows=tuple(
                Flow(bridge=name, destination=row.destination, queue_id=row.queue_id)
                for name in names
                for row in self.flows[name]
                if row.ours
            ),
            classifiers=tuple(c for nic in nics for c in self.links[nic].classifiers),
            routes=tuple(route for route, ours in self.routes if ours),
            rules=tuple(rule for rule, ours in self.rules if ours),
            nics=self._nics(),
            effective_queues=tuple(
                c for nic in nics for c in (self.links[nic].classes or {}).values()
            ),
            foreign=(
                *switch["foreign"],
                *self._foreign(left - set(sought.bridges)),
                *(
                    entry
                    for name in (*names, *sorted(left & set(sought.bridges)))
                    if sought.addresses is not None and sought.routes is not None
                    for entry in self.on_bridge(
                        name, {*(a for n, a in sought.addresses if n == name), *sought.routes}
                    )
                ),
                *(entry for nic in nics for entry in self.on_queues(nic)),
            ),
            bridges_down=tuple(name for name in names if not self.links[name].up),
            unopened=tuple(
                UnopenedNic(nic=b.nic)
                for b in bridges
                if b.name in names and b.nic in nics and not self.links[b.nic].opened
            ),
            bridge_routes=tuple(
                r for n in names for r in (*self.main_routes, *self.their_routes) if is_over(r, n)
            ),
            unused_rows=switch["unused_rows"],
            held=switch["held"],
            addresses_elsewhere=tuple(
                Address(interface=name, address=address)
                for name, link in self.links.items()
                if link.internal and name not in names and name not in sought.bridges
                for address in link.addresses
            ),
            routes_elsewhere=tuple(
                r
                for r in (*self.main_routes, *self.their_routes)
                if not any(
                    is_over(r, name)
                    for name, link in self.links.items()
                    if not link.internal or name in names or name in sought.bridges
                )
            ),
            problems=tuple(down),
        )

    def _is_up(self, name: str) -> bool:
        return name in self.links and self.links[name].up

    def _nics(self) -> tuple[NicFacts, ...]:
        bridge_of = {port: row.name for row in self.bridges.values() for port in row.ports}
        return tuple(
            NicFacts(
                name=name,
                mac=link.mac,
                mtu_bytes=link.mtu_bytes,
                up=link.up,
                speed_bits_per_second=None,
                driver="veth",
                rdma=False,
                addresses=tuple(link.addresses),
                bridge=bridge_of.get(name),
                address_commands=link.address_commands,
                routes=tuple(
                    r for r in (*self.main_routes, *self.their_routes) if is_over(r, name)
                ),
                root_qdisc=link.root if link.classes is None else "htb",
                left_by_switch=name not in bridge_of and link.classes is not None,
                standing=self.standing_on(name),
            )
            for name, link in sorted(self.links.items())
            if not link.internal
        )

    def standing_on(self, nic: str) -> tuple[str, ...]:
        """What would be lost or cut off if the NIC were set down."""
        routes = (*self.main_routes, *self.their_routes)
        return (
            *(f"interface {name}" for name, link in self.links.items() if link.above == nic),
            *(f"address {address}" for address in self.links[nic].addresses),
            *(f"route {line}" for line in routes if is_over(line, nic)),
            *(f"neighbour {address}" for address in self.links[nic].neighbours),
        )

    def _foreign(self, interfaces: Iterable[str]) -> list[ForeignEntry]:
        """Entries of others in our ranges."""
        return [
            *(
                ForeignEntry(collection="bridges", key=name, text=f"interface {name}")
                for name in interfaces
            ),
            *(
                ForeignEntry(
                    collection="rules",
                    key=str(rule.priority),
                    text=rule.key,
                    remedy=f"ip rule del priority {rule.priority}",
                )
                for rule, ours in self.rules
                if not ours and rule.priority in RULE_PRIORITIES
            ),
            *(
                ForeignEntry(
                    collection=INTERFACE_RULES,
                    key=f"ip rule {words}",
                    text=words,
                    remedy=f"ip rule del {words}",
                )
                for words in self.interface_rules
            ),
            *(
                ForeignEntry(
                    collection="routes",
                    key=route.key,
                    text=route.key,
                    on=route.interface if route.interface in self.bridges else "",
                    remedy=f"ip route del {route.destination} table {route.table}",
                )
                for route, ours in self.routes
                if not ours and route.table in TABLES
            ),
        ]

    def on_bridge(self, name: str, own: Collection[str]) -> list[ForeignEntry]:
        """What of others is on the interface of a bridge, and its flows. own: the addresses and
        routes that are ours."""

        def entry(collection: str, key: str, text: str, remedy: str) -> ForeignEntry:
            return ForeignEntry(
                collection=collection, key=key, text=text, on=name, remedy=f"{remedy} dev {name}"
            )

        link = self.links[name]
        lines = [r for r in (*self.main_routes, *self.their_routes) if is_over(r, name)]
        return [
            *(
                entry("addresses", f"{name} {a}", f"address {a}", f"ip address del {a}")
                for a in link.addresses
                if a not in own
            ),
            *(entry("routes", r, f"route {r}", f"ip route del {r}") for r in lines if r not in own),
            *(entry(NEIGHBOURS, n, f"neighbour {n}", f"ip neigh del {n}") for n in link.neighbours),
            *(
                entry(INTERFACES, above, f"interface {above}", f"ip link del {above}")
                for above, one in self.links.items()
                if one.above == name
            ),
            *(entry(DISCIPLINES, name, link.root, "tc qdisc del") for _ in [0] if link.root),
            *(
                ForeignEntry(
                    collection="flows",
                    key=f"{name} to {row.destination}"
                    if row.priority == FLOW_PRIORITY
                    else f"{name} priority={row.priority},nw_dst={row.destination}",
                    text=f"flow priority={row.priority},nw_dst={row.destination}",
                    on=name,
                    remedy=f"ovs-ofctl --strict del-flows {name} "
                    f"priority={row.priority},ip,nw_dst={row.destination}",
                )
                for row in self.flows.get(name, ())
                if not row.ours
            ),
        ]

    def on_queues(self, nic: str) -> list[ForeignEntry]:
        """What of others is on the HTB of a NIC, or in its place."""
        link = self.links[nic]
        found = [
            ForeignEntry(
                collection=FILTERS,
                key=f"{nic} preference {preference}",
                text=text,
                on=nic,
                remedy=f"tc filter del dev {nic} parent 1: pref {preference}",
            )
            for preference, text in link.filters.items()
        ]
        found += [
            ForeignEntry(
                collection=DISCIPLINES,
                key=f"{nic} 1:{queue_id + 1:x}",
                text=text,
                on=f"{nic} queue {queue_id}",
                remedy=f"tc qdisc del dev {nic} parent 1:{queue_id + 1:x}",
            )
            for queue_id, text in link.leaves.items()
        ]
        if link.root is not None:
            remedy = f"tc qdisc del dev {nic} root"
            found.append(
                ForeignEntry(collection=SHAPERS, key=nic, text=link.root, on=nic, remedy=remedy)
            )
        return found

    def foreign_objects(self) -> frozenset[tuple[object, ...]]:
        """All that others have made here, each as one value."""
        rows = self.bridges.values()
        return frozenset(
            [
                *(("address", n, a) for n, link in self.links.items() for a in link.theirs),
                *(("neighbour", n, a) for n, link in self.links.items() for a in link.neighbours),
                *(("filter", n, p) for n, link in self.links.items() for p in link.filters),
                *(("leaf", n, q) for n, link in self.links.items() for q in link.leaves),
                *(("root", n, link.root) for n, link in self.links.items() if link.root),
                *(("above", n) for n, link in self.links.items() if link.above),
                *(("route", line) for line in self.their_routes),
                *(("route", route) for route, ours in self.routes if not ours),
                *(("rule", rule) for rule, ours in self.rules if not ours),
                *(
                    ("flow", name, row.priority, row.destination)
                    for name, flows in self.flows.items()
                    for row in flows
                    if not row.ours
                ),
                *(("bridge", row.name) for row in rows if not row.ours),
                *(("port", r.name, p.name) for r in rows for p in r.ports.values() if not p.ours),
                *(
                    ("QoS", port.name)
                    for row in rows
                    for port in row.ports.values()
                    if port.qos is not None and not port.qos.ours
                ),
            ]
        )


def sysctls_of(interface: str) -> tuple[str, ...]:
    return tuple(sysctl.format(interface) for sysctl in SYSCTLS)


def same_subnet(one: str, other: str) -> bool:
    """Whether two addresses, each a.b.c.d/len or of IPv6, are in one subnet."""
    return ip_interface(one).network == ip_interface(other).network


def is_over(line: str, interface: str) -> bool:
    return f" dev {interface} " in f" {line} "


def _over(line: str, nic: str, name: str) -> str:
    words = line.split()
    return " ".join(name if before == "dev" and word == nic else word
                    for before, word in zip(["", *words], words, strict=False))  # fmt: skip


def mac(name: str) -> str:
    return f"02:00:00:00:00:{sum(name.encode()) % 256:02x}"


def base_address(nic: str) -> str:
    return f"10.7.{nic[-1]}.1/24"


def base_route(interface: str) -> str:
    """A gateway's route, in the main table, over nic0 or its bridge."""
    return f"10.50.0.0/16 via 10.7.0.254 dev {interface}"


def base_addresses(nic: str) -> tuple[str, ...]:
    """All of a NIC's own."""
    return (base_address(nic), *([BASE_V6] if nic == "nic0" else []))


def base_routes(interface: str) -> tuple[str, ...]:
    """All of a NIC's own, over it or its bridge."""
    if not interface.endswith("nic0"):
        return ()
    return base_route(interface), f"2001:db8::/32 via fd07::fe dev {interface} metric 1024"


def subnet_route(interface: str, nic: str = "nic0") -> str:
    """As NetworkManager makes it of the address of `nic`, over that NIC or its bridge."""
    subnet, host = ip_interface(base_address(nic)).network, base_address(nic).split("/")[0]
    return f"{subnet} dev {interface} proto 2 scope 253 src {host} metric 100"


def _subnet(route: str) -> Any:
    return ip_network(route.split(maxsplit=1)[0])


def _classes(qos: Qos) -> dict[int, EffectiveQueue]:
    return {
        queue_id: EffectiveQueue(
            nic=queue.nic,
            queue_id=queue_id,
            min_bits_per_second=max(queue.min_bits_per_second, LEAST_CLASS_BITS_PER_SECOND),
            max_bits_per_second=queue.max_bits_per_second,
            burst_bytes=queue.burst_bits // 8,
        )
        for queue_id, queue in qos.queues.items()
    }
