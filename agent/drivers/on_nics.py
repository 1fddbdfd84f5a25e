"""Finds what stands on a NIC and would be lost or cut off if the NIC were set down."""

from __future__ import annotations

from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.on_bridges import made_by_kernel


def what_stands_on(view: InterfaceView, nic: str) -> tuple[str, ...]:
    """Each with what it is, as NicFacts.standing has it. What the kernel makes by itself, and of a
    router's advertisement, is not named: it is made again."""
    neighbours = (*view.permanent_neighbours, *view.proxied)
    return (
        *(f"interface {name}" for name in view.above(nic)),
        *(
            f"address {entry['local']}/{entry['prefixlen']}"
            for entry in view.address_entries(nic)
            if not made_by_kernel(entry)
        ),
        *(f"route {line}" for line in view.foreign_routes(nic)),
        *(f"neighbour {entry['dst']}" for entry in neighbours if entry.get("dev") == nic),
        *(f"nexthop object {name}" for name in view.nexthops(nic)),
        *(
            f"what has the link-layer address {mac} in another network namespace"
            for mac in view.taken_link_layers(nic)
        ),
    )
