"""Reads facts of interfaces."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Interface
from itertools import islice
from pathlib import Path
from typing import Any

from placewire.agent.contract.entries import Bridge, DatapathType
from placewire.agent.contract.state import MOST_DOUBLED, NicFacts
from placewire.agent.drivers import ethtool, pci
from placewire.agent.drivers.address_words import address_command
from placewire.agent.drivers.command import parsed, run, shown
from placewire.agent.drivers.disciplines import Discipline, read_disciplines
from placewire.agent.drivers.routes import (
    is_advertised,
    is_over,
    is_the_kernels,
    printed_routes,
    read_routes,
)
from placewire.agent.drivers.routes_of_programs import routes_of_programs
from placewire.agent.drivers.traffic_control import HTB_HANDLE
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.foreign_kinds import MOST_NAMED
from placewire.agent.reconcile.route_identity import (
    destination_of,
    identities,
    identity,
)

# With numbers in the place of names, also of scopes: which names there are may change at any time.
_SHOW = ("ip", "-N", "-j")
# Scopes of IPv6 addresses: of a link, and of the loopback. `site` (fec0::/10) is routed.
_NOT_GLOBAL = ("253", "254")
# `ip -N` also hides the types of links, which no file names.
_LINK_TYPES = {"[1]": "ether", "[32]": "infiniband", "[772]": "loopback", "[65534]": "none"}
# The address of several interfaces: the lowest bit of its first byte is set.
_GROUP_MAC = re.compile(r"[\da-f][13579bdf]")
# Interfaces that have the link-layer address of what they are made on.
_SHARE_ITS_ADDRESS = ("ipvlan", "ipvtap")
_DATAPATH_INTERFACES = ("ovs-netdev", "ovs-system")
# Disciplines that take what an interface receives.
RECEIVING = ("ingress", "clsact")
# The datapath that makes a bridge's own interface of this kind, in the kernel's words.
_DATAPATH_OF: Mapping[str, DatapathType] = {"tun": "netdev", "openvswitch": "system"}


class InterfaceView:
    """All interfaces as `ip` shows them, with their queueing disciplines; read once."""

    def __init__(self) -> None:
        # Before the addresses: the route of one that comes in between would pass for a program's.
        self._routes = read_routes()
        self._links: dict[str, Any] = {
            link["ifname"]: {**link, "link_type": _LINK_TYPES.get(kind, kind)}
            for link in parsed(run([*_SHOW, "-d", "address", "show"]))
            for kind in [link.get("link_type", "")]
        }
        self._disciplines = read_disciplines(self.names_by_index)

    @property
    def names(self) -> Collection[str]:
        return self._links.keys()

    @property
    def names_by_index(self) -> dict[int, str]:
        return {link["ifindex"]: name for name, link in self._links.items()}

    def mtu_bytes(self, interface: str) -> int:
        """0 where the interface does not exist."""
        return int(self._links[interface]["mtu"]) if interface in self._links else 0

    def mac(self, interface: str) -> str:
        """Raises EffectError where the interface does not exist."""
        if interface not in self._links:
            raise EffectError(f"NIC {interface} is gone")
        return str(self._links[interface]["address"])

    def is_up(self, interface: str) -> bool:
        return interface in self._links and "UP" in self._links[interface]["flags"]

    def is_bare_of_v6(self, interface: str) -> bool:
        """Whether it is down, and has no IPv6 address."""
        there = self.address_entries(interface)
        return not self.is_up(interface) and all(a["family"] != "inet6" for a in there)

    def link(self, interface: str) -> Mapping[str, Any]:
        """As `ip -d -j address` shows it; empty where it does not exist."""
        found: Mapping[str, Any] = self._links.get(interface, {})
        return found

    def addresses(self, interface: str) -> list[str]:
        """Those of global scope, IPv6 too, each with its length."""
        return [f"{a['local']}/{a['prefixlen']}" for a in self._global(interface)]

    def left_by_switch(self, ours: Collection[str], internal: Collection[str]) -> list[Bridge]:
        """The interfaces named in `ours` that ovs-vswitchd made for a bridge and that are not
        `internal`, the database's. A killed ovs-vswitchd leaves them behind, and the next one
        removes none whose bridge is gone meanwhile."""
        return [
            Bridge(name=name, nic="", datapath=_DATAPATH_OF[kind], mtu_bytes=self.mtu_bytes(name))
            for name in sorted(set(ours) - set(internal))
            if (kind := self._kind(name)) in _DATAPATH_OF
        ]

    def _kind(self, interface: str) -> str:
        return _kind_of(self._links.get(interface, {}))

    def has_htb_of_switch(self, nic: str) -> bool:
        """Whether the NIC has an HTB with Open vSwitch's handle and root class."""
        root = self._root(nic)
        if root is None or (root.kind, root.handle) != ("htb", HTB_HANDLE):
            return False
        return "class htb 1:fffe root" in run(["tc", "class", "show", "dev", nic])

    @cached_property
    def permanent_neighbours(self) -> Sequence[Mapping[str, Any]]:
        """Those that a program entered for good, as `ip -j neigh` shows them."""
        found = parsed(run([*_SHOW, "neigh", "show", "nud", "all"]) or "[]")
        return [entry for entry in found if self._is_permanent(entry)]

    def _is_permanent(self, entry: Mapping[str, Any]) -> bool:
        state = entry.get("state", ())
        if "PERMANENT" in state or "extern_learn" in entry or "managed" in entry:
            return True
        # The kernel says NOARP of broadcast and multicast addresses, and of interfaces without ARP.
        flags = self._links.get(entry.get("dev", ""), {}).get("flags", ())
        return (
            "NOARP" in state
            and not _GROUP_MAC.match(entry.get("lladdr", "01"))
            and not {"NOARP", "LOOPBACK", "POINTOPOINT"}.intersection(flags)
        )

    @cached_property
    def _nexthops(self) -> Sequence[Mapping[str, Any]]:
        """The nexthop objects, as `ip -j nexthop` shows them."""
        try:
            return list(parsed(run([*_SHOW, "nexthop", "show"]) or "[]"))
        except EffectError:  # A kernel without them.
            return []

    def nexthops(self, interface: str) -> tuple[str, ...]:
        """The nexthop objects over the interface that have a gateway, as `ip nexthop` names them.
        Routing daemons make one without a gateway for each interface and each connected route; what
        is sent by such an object has a route, which is seen as one."""
        return tuple(
            f"id {one['id']} via {one['gateway']} dev {interface}"
            for one in self._nexthops
            if one.get("dev") == interface and "gateway" in one
        )

    @cached_property
    def proxied(self) -> Sequence[Mapping[str, Any]]:
        """The neighbours for which this server answers, as `ip -j neigh` shows them."""
        return list(parsed(run([*_SHOW, "neigh", "show", "proxy"]) or "[]"))

    @cached_property
    def local_routes(self) -> Sequence[str]:
        """Other programs' IPv4 routes of table local."""
        return [line for line in printed_routes("-4", "255") if not is_the_kernels(line)]

    def _lost_with_addresses(self, nic: str) -> tuple[str, ...]:
        asked = (("", self.permanent_neighbours), ("proxy ", self.proxied))
        has_v6 = any(":" in address for address in self.addresses(nic))
        return (
            *(
                f"neigh {kind}{entry['dst']} dev {nic}"
                for kind, entries in asked
                for entry in entries
                if entry.get("dev") == nic and (has_v6 or ":" not in entry["dst"])
            ),
            *(f"route {line}" for line in self.local_routes if is_over(line, nic)),
        )

    @cached_property
    def all_foreign_routes(self) -> Sequence[str]:
        """Other programs' routes, as `ip route` accepts them."""
        entries = {name: self.address_entries(name) for name in self.names}
        return routes_of_programs(self._routes, entries)

    def disciplines(self, interface: str) -> tuple[Discipline, ...]:
        """The queueing disciplines that have a handle."""
        return self._disciplines.get(interface, ())

    def _root(self, interface: str) -> Discipline | None:
        return next((one for one in self.disciplines(interface) if not one.parent), None)

    def above(self, interface: str) -> tuple[str, ...]:
        """The interfaces that are made on top of it, as VLANs are: they go with it."""
        # A VXLAN names its lower interface among its own settings only.
        return tuple(
            name
            for name, link in self._links.items()
            if interface
            in (link.get("link"), link.get("linkinfo", {}).get("info_data", {}).get("link"))
        )

    def master(self, interface: str) -> str:
        """The bridge, bond or the like of the kernel's that it is a port of; "" for none."""
        master = str(self._links.get(interface, {}).get("master", ""))
        return "" if master in _DATAPATH_INTERFACES else master

    def taken_link_layers(self, interface: str) -> tuple[str, ...]:
        """The link-layer addresses of single interfaces that programs have it take beside what
        belongs to the interfaces that are known to be made on it. A macvlan or ipvlan that is up in
        another network namespace shows itself by nothing else here."""
        if interface not in self._links or self.master(interface):
            return ()  # A master has its ports take what it needs.
        above = [self._links[name] for name in self.above(interface)]
        known = {link.get("address") for link in above}
        if any(_kind_of(link) in _SHARE_ITS_ADDRESS for link in above):
            known.add(self.mac(interface))
        entries = parsed(run(["bridge", "-j", "fdb", "show", "dev", interface]) or "[]")
        return tuple(
            entry["mac"]
            for entry in entries
            if "self" in entry.get("flags", ())
            and entry["mac"] not in known
            and not _GROUP_MAC.match(entry["mac"])
        )

    def address_entries(self, interface: str) -> list[Mapping[str, Any]]:
        """Its addresses of IPv4 and IPv6, all, as `ip -j address` shows them. It may not even name
        the family of another one."""
        entries = self._links.get(interface, {}).get("addr_info", [])
        return [entry for entry in entries if entry.get("family") in ("inet", "inet6")]

    def foreign_routes(self, interface: str, also: Collection[str] = ()) -> tuple[str, ...]:
        """Other programs' routes through the interface, as `ip route` accepts them. also: routes
        that count though the kernel has made them."""
        counted = identities(also)
        return tuple(
            line
            for line in self._routes
            if is_over(line, interface)
            and (line in self._foreign_lines or identity(line) in counted)
        )

    @cached_property
    def _foreign_lines(self) -> frozenset[str]:
        return frozenset(self.all_foreign_routes)

    def foreign_routes_beside(self, interfaces: Collection[str]) -> tuple[str, ...]:
        """Other programs' routes through none of these interfaces, as `ip route` accepts them."""
        lines = self.all_foreign_routes
        return tuple(r for r in lines if not any(is_over(r, name) for name in interfaces))

    def _advertised(self, nic: str) -> tuple[str, ...]:
        """They lead to nobody on a bridge's port. The kernel makes them again once the NIC is given
        back, and anew whenever somebody deletes them."""
        found = (line for line in self._routes if is_over(line, nic) and is_advertised(line))
        return tuple(islice(found, MOST_NAMED))

    @cached_property
    def _routes_to(self) -> Mapping[str, Sequence[str]]:
        """All routes, by their destination."""
        found: dict[str, list[str]] = defaultdict(list)
        for line in self._routes:
            found[destination_of(line)].append(line)
        return found

    def lacks_its_subnet(self, interface: str, address: str) -> bool:
        """Whether somebody removed the route that the kernel made with this address (a.b.c.d/len),
        and made none in its stead. An interface that is down has no routes."""
        network = IPv4Interface(address).network
        if network.prefixlen == network.max_prefixlen or not self.is_up(interface):
            return False
        return not any(is_over(r, interface) for r in self._routes_to.get(str(network), ()))

    def _doubled(self, routes: Sequence[str]) -> tuple[str, ...]:
        """Those beside which the kernel has another route in the same place."""
        found = (
            route
            for route in routes
            if sum(
                identity(other).place == identity(route).place
                for other in self._routes_to[destination_of(route)]
            )
            > 1
        )
        return tuple(islice(found, MOST_DOUBLED))

    def nics(
        self, bridge_of_interface: Mapping[str, str], internal: Collection[str]
    ) -> tuple[NicFacts, ...]:
        """All interfaces that could be a NIC: not the loopback, and not Open vSwitch's own."""
        return tuple(
            self._facts(name, bridge_of_interface)
            for name, link in sorted(self._links.items())
            if "LOOPBACK" not in link["flags"]
            and name not in internal
            and name not in _DATAPATH_INTERFACES
        )

    def nic(self, name: str) -> NicFacts | None:
        """One of them, as if it were no port of a bridge of Open vSwitch's; None where it is
        gone."""
        return self._facts(name, {}) if name in self._links else None

    def _facts(self, name: str, bridge_of_interface: Mapping[str, str]) -> NicFacts:
        link = self._links[name]
        master = link.get("master")
        bridge = bridge_of_interface.get(name) or (None if master == "ovs-system" else master)
        root, routes = self._root(name), self.foreign_routes(name)
        return NicFacts(
            name=name,
            mac=link.get("address", ""),
            mtu_bytes=link["mtu"],
            up=self.is_up(name),
            speed_bits_per_second=ethtool.speed_bits_per_second(name),
            driver=ethtool.driver(name),
            rdma=_has_rdma(name),
            addresses=tuple(self.addresses(name)),
            bridge=bridge,
            address_commands=self.address_commands(name),
            routes=routes,
            advertised_routes=self._advertised(name),
            root_qdisc=root.kind if root else None,
            receiving_qdisc=next(
                (one.kind for one in self.disciplines(name) if one.kind in RECEIVING), None
            ),
            carrier="LOWER_UP" in link["flags"] if self.is_up(name) else None,
            promiscuous="PROMISC" in link["flags"],
            left_by_switch=bridge is None and self.has_htb_of_switch(name),
            # 0: the driver states no bound.
            least_mtu_bytes=link.get("min_mtu") or None,
            largest_mtu_bytes=link.get("max_mtu") or None,
            link_type=link["link_type"],
            kind=self._kind(name),
            resolves_neighbours=not {"NOARP", "POINTOPOINT"}.intersection(link["flags"]),
            lost_with_addresses=self._lost_with_addresses(name),
            doubled_routes=self._doubled(routes),
            nexthops=self.nexthops(name),
            other_names=tuple(link.get("altnames", ())),
            place=pci.place_of_nic(name),
        )

    def address_commands(self, interface: str) -> tuple[str, ...]:
        """Its addresses as `ip address add` accepts them."""
        return tuple(address_command(entry) for entry in self._global(interface))

    def _global(self, interface: str) -> list[Any]:
        entries = self.address_entries(interface)
        return [a for a in entries if a["family"] == "inet" or a["scope"] not in _NOT_GLOBAL]


def _kind_of(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def is_promiscuous(nic: str) -> bool:
    """As it is at this moment. Raises EffectError."""
    (link,) = parsed(run([*_SHOW, "link", "show", "dev", nic]))
    return "PROMISC" in link["flags"]


def _has_rdma(name: str) -> bool:
    """Whether its adapter has RDMA, or RDMA in software (rxe, siw) names it as the parent."""
    if Path(f"/sys/class/net/{name}/device/infiniband").exists():
        return True
    parents = Path("/sys/class/infiniband").glob("*/parent")
    return any(shown(parent.read_bytes().strip()) == name for parent in parents)
