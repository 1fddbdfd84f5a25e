"""Reads routes as `ip route` prints and accepts them, and tells whose they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from ipaddress import IPv4Interface
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from placewire.agent.contract.entries import PROTOCOL, TABLES
from placewire.agent.drivers.command import run

# Words that `ip route` prints and does not accept.
_ROUTE_STATES = {"linkdown", "dead", "offload", "rt_offload", "trap", "pervasive"}
_LASTS = re.compile(r" expires \S+")
# The end of a line, as `ip -o` writes it; another backslash is part of a name.
_LINE_END = re.compile(r"\\(?=\s)")
# Where the versions of iproute2 look for names of routing protocols.
_PROTOCOL_NAMES = tuple(
    f"{folder}/iproute2/{files}"
    for folder in ("etc", "usr/lib", "usr/share")
    for files in ("rt_protos", "rt_protos.d/*.conf")
)


def read_routes(family: Literal["-4", "-6"] = "-4") -> list[str]:
    """All routes but ours and those of table local, as `ip route` accepts them. Those without a
    gateway come first, so that all can be added in this order."""
    lines, protocol = [], names_of_our_protocol()
    for line in run(["ip", "-o", family, "route", "show", "table", "all"]).splitlines():
        # How long a route still lasts differs at each reading.
        lasting = _LASTS.sub("", _LINE_END.sub(" ", line))
        words = [word for word in lasting.split() if word not in _ROUTE_STATES]
        pairs = set(pairwise(words))
        own = family == "-4" and _is_ours(pairs, protocol)
        if words and ("table", "local") not in pairs and not own:
            lines.append(" ".join(words))
    return sorted(lines, key=lambda line: " via " in line)


def names_of_our_protocol(root: Path = Path("/")) -> frozenset[str]:
    """How `ip` may show our protocol: by its number, or as a file of iproute2's names it."""
    names = {str(PROTOCOL)}
    for pattern in _PROTOCOL_NAMES:
        for path in root.glob(pattern):
            with suppress(OSError):
                text = path.read_text(errors="backslashreplace")
                rows = (line.partition("#")[0].split() for line in text.splitlines())
                names |= {row[1] for row in rows if len(row) == 2 and _is_protocol(row[0])}
    return frozenset(names)


def _is_protocol(number: str) -> bool:
    """number: as iproute2's files have it, decimal or hexadecimal."""
    with suppress(ValueError):
        return int(number, 16 if number.startswith("0x") else 10) == PROTOCOL
    return False


def _is_ours(pairs: Collection[tuple[str, str]], protocol: Collection[str]) -> bool:
    """Whether a route of these pairs of neighbouring words has our protocol and is in a table of
    ours. A table that /etc/iproute2/rt_tables names may be one of ours: the name hides the number.
    """
    table = next((value for key, value in pairs if key == "table"), "main")
    in_ours = int(table) in TABLES if table.isdigit() else table not in ("main", "default")
    return any(("proto", name) in pairs for name in protocol) and in_ours


def is_the_kernels(route: str) -> bool:
    """Whether the kernel made it, or a program that says so. `ra`: of a router's advertisement."""
    return any(f" proto {protocol} " in f"{route} " for protocol in ("kernel", "ra"))


def is_over(route: str, interface: str) -> bool:
    return f" dev {interface} " in f" {route} "


def made_with(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """What `identified` says of the route that the kernel makes with an IPv4 address."""
    peer_or_own = entry.get("address", entry["local"])
    network = IPv4Interface(f"{peer_or_own}/{entry['prefixlen']}").network
    return str(network).removesuffix("/32"), entry["local"], str(entry.get("metric", ""))


def identified(route: str) -> tuple[str, str, str]:
    """Its destination, source and metric; "" for what it does not say."""
    words = route.split()
    said = dict(pairwise(words))
    return words[0], said.get("src", ""), said.get("metric", "")
