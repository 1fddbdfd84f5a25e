"""Refusals about what a NIC holds that could not move to its bridge and come back as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Interface, IPv6Network
from itertools import islice
from shlex import quote

from placewire.agent.contract.entries import Bridge
from placewire.agent.contract.state import (
    DesiredState,
    NicFacts,
    ObservedState,
    Refusal,
    refuse,
)
from placewire.agent.reconcile.command_words import interfaces_of, is_a_route, is_an_address, quoted
from placewire.agent.reconcile.foreign_kinds import MOST_NAMED
from placewire.agent.reconcile.interface_rules import command_for_bridges, rules_naming
from placewire.agent.reconcile.route_identity import is_of_v6

# Protocols of routes (linux/rtnetlink.h) whose programs withdraw them by themselves: gated, mrt,
# zebra, bird, dnrouted, xorp, ntk, dhcp, keepalived, babel, bgp, isis, ospf, rip, eigrp.
_WITHDRAWN_BY_PROGRAMS = re.compile(r" proto (?:8|10|11|12|13|14|15|16|18|42|186|187|188|189|192) ")


def lost_refusals(nic: NicFacts) -> Iterator[Refusal]:
    """Refuses what would be lost, lead to nobody, or come back though its program withdrew it."""
    where = f"NIC {nic.name}"
    for entry in nic.lost_with_addresses:
        kind, _, words = entry.partition(" ")
        of_v6 = is_of_v6(words.removeprefix("proxy "))
        yield refuse(
            where,
            f"has the entry `{entry}` that someone set, and "
            + (
                "it would be of no use while the NIC's IPv6 is on a bridge"
                if of_v6
                else "the kernel drops it with the last address of a NIC"
            ),
            f"use a NIC without, or remove it (ip {kind} del {quoted(words)})",
        )
    if any(is_of_v6(text) for text in (*nic.addresses, *nic.routes)):
        for route in nic.advertised_routes:
            yield refuse(
                where,
                f"has the route {route!r} of a router's advertisement beside IPv6 of its own: it "
                "would lead to nobody, as the kernel makes it on this NIC alone",
                f"have the NIC take none ({_no_advertisements(nic)}; ip route del "
                f"{quoted(route)}; where systemd-networkd makes it: IPv6AcceptRA=no), and give it "
                "a route of its own if one is needed",
            )
    for one in () if nic.up else _lost_when_down(nic):
        yield refuse(
            where,
            f"is down and has the IPv6 {one}, which the kernel drops when an undo sets it down "
            "again",
            f"use a NIC without, set it up (ip link set {quote(nic.name)} up), or take that off it",
        )
    withdrawn = (
        route
        for route in nic.routes
        if is_a_route(route) and _WITHDRAWN_BY_PROGRAMS.search(f"{route} ")
    )
    for route in islice(withdrawn, MOST_NAMED):
        yield refuse(
            where,
            f"has the route {route!r} of a routing program, which may withdraw it at any time, and "
            "Placewire would put it back",
            "use a NIC without, or have that program make no routes over this one",
        )
    for nexthop in nic.nexthops:
        yield refuse(
            where,
            f"has the nexthop object `{nexthop}`, and what is sent by it would no longer leave",
            f"use a NIC without, or remove it (ip nexthop del {' '.join(nexthop.split()[:2])})",
        )


def _lost_when_down(nic: NicFacts) -> Iterator[str]:
    """Yields what somebody put on a NIC that is down, and the kernel drops when an undo sets it
    down again."""
    for one in nic.standing:
        kind, _, what = one.partition(" ")
        if kind in ("address", "neighbour") and ":" in what:
            yield one


def holding_refusals(wanted: DesiredState, bridge: Bridge, nic: NicFacts) -> Iterator[Refusal]:
    """Refuses addresses and routes that cannot move to the bridge and come back."""
    where = f"NIC {nic.name}"
    on_bridge = {a.address for a in wanted.addresses if a.interface == bridge.name}
    for address in nic.addresses:
        if not is_of_v6(address) and address not in on_bridge:
            yield refuse(
                where,
                f"holds {address}, which the plan does not give it",
                "put that address into the plan, or take it off the NIC",
            )
    for command in nic.address_commands:
        if is_of_v6(command):
            yield from _held_v6(nic, command)
            continue
        if "dynamic" in command.split():
            yield refuse(
                where,
                f"got {command.split()[0]} for a limited time (DHCP)",
                "give the NIC that address for good",
            )
        if "\\" in command:
            yield refuse(
                where,
                f"has the address {command}, whose label cannot be given back: it holds a blank, "
                "a control character, a backslash or a byte that is no UTF-8",
                "give the NIC that address anew without such a label",
            )
    yield from _immovable_routes(nic)


def _held_v6(nic: NicFacts, command: str) -> Iterator[Refusal]:
    """Refuses an IPv6 address that cannot move to the bridge and come back as it is."""
    where, words = f"NIC {nic.name}", command.split()
    address = words[0]
    if "dynamic" in words:
        yield refuse(
            where,
            f"got {address} for a limited time (of a router's advertisement, by DHCPv6 or with a "
            "lifetime), and nobody would renew it on a bridge",
            f"give the NIC that address for good, or have it take none ({_no_advertisements(nic)}; "
            f"ip address del {address} dev {quote(nic.name)}; where systemd-networkd makes it: "
            "IPv6AcceptRA=no)",
        )
    elif "dadfailed" in words:
        yield refuse(
            where,
            f"has the address {address}, which somebody else on its network has as well "
            "(dadfailed)",
            f"give one of them another address, or remove it (ip address del {address} dev "
            f"{quote(nic.name)})",
        )
    elif "peer" in words or not is_an_address(command):
        yield refuse(
            where,
            f"has the address {command!r}, whose peer or flags cannot be given to a bridge and "
            "back",
            "give the NIC that address anew without them",
        )


def doubled_refusals(nic: NicFacts) -> Iterator[Refusal]:
    """The kernel uses the first of them, and only it knows which came first."""
    for route in nic.doubled_routes:
        yield refuse(
            f"NIC {nic.name}",
            f"has the route {route!r}, and there is another one of the same destination and "
            "metric: their order could not be given back",
            f"remove one of them, or give it another metric (ip route del {quoted(route)})",
        )


def _immovable_routes(nic: NicFacts) -> Iterator[Refusal]:
    where = f"NIC {nic.name}"
    for route in nic.routes:
        if "nexthop" in route.split():
            yield refuse(
                where, f"is part of the multipath route {route!r}", "remove that route first"
            )
        elif not is_a_route(route):
            yield refuse(
                where,
                f"has the route {route!r}, which cannot be moved to the bridge and back as it is",
                f"remove that route first (ip route del {quoted(route)})",
            )


def shared_subnet_refusals(nic: NicFacts, observed: ObservedState) -> Iterator[Refusal]:
    """Refuses a NIC that has an IPv6 subnet in common with another interface: the kernel uses the
    first of their routes, and that of the other one would be the first after an undo."""
    own = {subnet: command.split()[0] for command in nic.address_commands
           if (subnet := _subnet_v6(command))}  # fmt: skip
    others = [(o.name, c) for o in observed.nics if o.name != nic.name for c in o.address_commands]
    others += [(entry.interface, entry.address) for entry in observed.addresses_elsewhere]
    for name, command in others:
        if (subnet := _subnet_v6(command)) in own:
            yield refuse(
                f"NIC {nic.name}",
                f"has {own[subnet]}, and {name} has {command.split()[0]} of the same subnet and "
                "metric: the order of their routes could not be given back",
                "give one of them an address of another subnet, or another metric",
            )


def _subnet_v6(command: str) -> tuple[IPv6Network, str] | None:
    """The subnet of an IPv6 address to which the kernel has made a route, and its metric; None for
    other addresses."""
    words = command.split()
    if not is_of_v6(command) or "noprefixroute" in words or "peer" in words:
        return None
    network = IPv6Interface(words[0]).network
    metric = words[words.index("metric") + 1] if "metric" in words else ""
    return None if network.prefixlen == network.max_prefixlen else (network, metric)


def source_refusals(nic: NicFacts, observed: ObservedState) -> Iterator[Refusal]:
    """Refuses a NIC whose address is the source of a route over another interface: the kernel
    removes such a route when the address leaves the bridge again."""
    hosts = [address.split("/")[0] for address in nic.addresses]
    routes = [(n.name, route) for n in observed.nics if n.name != nic.name for route in n.routes]
    for route in observed.routes_elsewhere:
        routes.append((", ".join(sorted(interfaces_of(route))) or "this server", route))
    for name, route in routes:
        if any(f" src {host} " in f"{route} " for host in hosts):
            yield refuse(
                f"NIC {nic.name}",
                f"has the address from which {name} sends by the route {route!r}; an undo would "
                "lose that route",
                f"remove it, or give it a source of {name}'s own (ip route del {quoted(route)})",
            )


def _no_advertisements(nic: NicFacts) -> str:
    return f"sysctl -w {quote(f'net.ipv6.conf.{nic.name}.accept_ra=0')}"


def named_refusals(
    nic: NicFacts, over: Mapping[str, str], observed: ObservedState
) -> Iterator[Refusal]:
    """Refuses a NIC that others' rules of routing name, which would then do nothing. For a stage
    alone: an undo, or a lease that ends, must not be kept from a NIC by such a rule. over: see
    bridges_over."""
    bridge = over[nic.name]
    for rule in islice(rules_naming(nic, over, observed), MOST_NAMED):
        yield refuse(
            f"NIC {nic.name}",
            f"is named by the rule `{rule.text}` that someone set, which does nothing while "
            f"{bridge} has the NIC's address",
            (
                f"add the same rule for {bridge} as well "
                f"({quoted(command_for_bridges(rule, over))}), use a NIC without, or remove it "
                f"({quoted(rule.remedy)})"
            )
            if rule.remedy
            else "use a NIC without, or remove it; `ip rule` or `ip -6 rule` shows all of it, of "
            "which this agent does not know some conditions",
        )
