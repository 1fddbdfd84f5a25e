"""Reads routes as `ip route` prints and accepts them, and tells whose they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from ipaddress import ip_interface
from itertools import pairwise
from typing import Any, Literal

from placewire.agent.contract.entries import PROTOCOL, TABLES
from placewire.agent.drivers.command import run
from placewire.agent.iproute2_names import as_accepted
from placewire.agent.reconcile.route_identity import is_of_v6

# Words that `ip route` prints and does not accept.
_ROUTE_STATES = {"linkdown", "dead", "offload", "rt_offload", "trap", "pervasive"}
_LASTS = re.compile(r" expires \S+")
# The destination, after the type where one is said.
_DEFAULT = re.compile(r"^(\w+ )?default\b")
# The end of a line, as `ip -o` writes it; another backslash is part of a name.
_LINE_END = re.compile(r"\\(?=\s)")
# The types of routes by the kernel's numbers (linux/rtnetlink.h): `ip -N` prints a number in the
# place of each name, and takes back only the names of these.
_TYPES = {
    "1": "unicast", "2": "local", "3": "broadcast", "4": "anycast", "5": "multicast",
    "6": "blackhole", "7": "unreachable", "8": "prohibit", "9": "throw", "10": "nat",
}  # fmt: skip
_MAIN, _LOCAL = "254", "255"
# The types of routes that `ip route` looks for in table local where no table is said.
_OF_TABLE_LOCAL = ("local", "broadcast", "anycast", "nat")
# The protocols (linux/rtnetlink.h) of the kernel's own routes, and of a router's advertisement.
_KERNEL, _ADVERTISEMENT = "2", "9"
# The kernel gives this metric to the route that it makes with an IPv6 address without a metric.
METRIC_V6 = "256"


def read_routes() -> list[str]:
    """All routes but ours and those of table local, as `ip route` accepts them. Those without a
    gateway come first, so that all can be added in this order."""
    lines = []
    for line in (*printed_routes("-4", "all"), *printed_routes("-6", "all")):
        pairs = set(pairwise(line.split()))
        own = _is_ours(pairs) and not is_of_v6(line)
        if ("table", _LOCAL) not in pairs and not own:
            lines.append(line)
    return sorted(lines, key=lambda line: " via " in line)


def printed_routes(family: Literal["-4", "-6"], table: str) -> list[str]:
    """The routes of a table (its number, or `all`), as `ip route` accepts them. Tables, protocols,
    scopes and the like are numbers: which names there are for them may change at any time. A table
    that is not printed is said where `ip route` would take another one. A default route of IPv6 is
    one to ::/0, so that each route says its family."""
    printed = run(["ip", "-N", "-o", family, "route", "show", "table", table]).splitlines()
    unsaid = _MAIN if table == "all" else table
    lines = [_in_its_table(line, unsaid) for raw in printed if (line := _accepted(raw))]
    return lines if family == "-4" else [_DEFAULT.sub(r"\1::/0", line) for line in lines]


def _in_its_table(line: str, unsaid: str) -> str:
    """unsaid: the number of the table of a route that names none."""
    taken_for = _LOCAL if line.split(maxsplit=1)[0] in _OF_TABLE_LOCAL else _MAIN
    said = " table " in line or unsaid == taken_for
    return line if said else f"{line} table {unsaid}"


def _accepted(printed: str) -> str:
    # How long a route still lasts differs at each reading.
    lasting = _LASTS.sub(" expires 0", _LINE_END.sub(" ", printed))
    words = [word for word in lasting.split() if word not in _ROUTE_STATES]
    kind = [_TYPES.get(word, word) for word in words[:1]]
    return as_accepted(" ".join([*kind, *words[1:]]))


def _is_ours(pairs: Collection[tuple[str, str]]) -> bool:
    """Whether a route of these pairs of neighbouring words has our protocol, and is in a table of
    ours."""
    table = next((value for key, value in pairs if key == "table"), _MAIN)
    return ("proto", str(PROTOCOL)) in pairs and table.isdigit() and int(table) in TABLES


def is_the_kernels(route: str) -> bool:
    """Whether the kernel made it, or a program that says so."""
    return f" proto {_KERNEL} " in f"{route} "


def is_advertised(route: str) -> bool:
    """Whether the kernel made it of a router's advertisement. The subnets in one are of `proto
    kernel`, and expire."""
    lasts = is_the_kernels(route) and " expires " in route
    return is_of_v6(route) and (lasts or f" proto {_ADVERTISEMENT} " in f"{route} ")


def is_over(route: str, interface: str) -> bool:
    return f" dev {interface} " in f" {route} "


def made_with(entry: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What `identified` says of the routes that the kernel makes with an address."""
    if entry["family"] == "inet6":
        metric = str(entry.get("metric", METRIC_V6))
        ends = [entry["local"], *([entry["address"]] if "address" in entry else [])]
        return [(_network(end, entry), "", metric) for end in ends]
    peer_or_own = entry.get("address", entry["local"])
    return [(_network(peer_or_own, entry), entry["local"], str(entry.get("metric", "")))]


def _network(host: str, entry: Mapping[str, Any]) -> str:
    network = ip_interface(f"{host}/{entry['prefixlen']}").network
    whole = network.prefixlen == network.max_prefixlen
    return str(network.network_address if whole else network)


def identified(route: str) -> tuple[str, str, str]:
    """Its destination, source and metric; "" for what it does not say."""
    words = route.split()
    said = dict(pairwise(words))
    return words[0], said.get("src", ""), said.get("metric", "")
