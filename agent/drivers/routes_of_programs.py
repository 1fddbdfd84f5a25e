"""Tells the routes that programs made from those that the kernel makes by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from placewire.agent.drivers.routes import (
    METRIC_V6,
    identified,
    is_advertised,
    is_the_kernels,
    made_with,
)
from placewire.agent.reconcile.command_words import interfaces_of
from placewire.agent.reconcile.route_identity import is_of_v6


def routes_of_programs(
    routes: Iterable[str], addresses: Mapping[str, Iterable[Mapping[str, Any]]]
) -> list[str]:
    """Other programs' routes, as `ip route` accepts them: those that a program must put back
    once they are gone. The kernel makes one for the subnet of an address, of `proto kernel`.
    Programs say so, too: Cilium of its routes to other nodes, NetworkManager of a subnet's,
    which it makes itself (the address then has `noprefixroute`). Of IPv6, it also makes some
    without an address, of routers' advertisements among others.

    routes: as `ip route` accepts them. addresses: by interface, as `ip -j address` shows them."""
    made, unmade = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for name, entries in addresses.items():
        for entry in entries:
            kept = unmade if entry.get("noprefixroute") else made
            kept.update((name, *said) for said in made_with(entry))
    bare = {(name, destination) for name, destination, *_ in unmade - made}

    def is_made(line: str) -> bool:
        said = [(name, *identified(line)) for name in interfaces_of(line)]
        # As a link-local address stays on its NIC, so does the kernel's route with it, which
        # NetworkManager may make in the kernel's stead, with a metric.
        if is_of_v6(line) and any(one[1].startswith(("fe80::", "ff00::")) for one in said):
            return True
        if any(one in made for one in said):
            return True
        by_program = any((name, destination) in bare for name, destination, *_ in said)
        return is_of_v6(line) and not by_program and all(one[3] == METRIC_V6 for one in said)

    return [
        line
        for line in routes
        if not (is_advertised(line) or (is_the_kernels(line) and is_made(line)))
    ]
