"""Servers as they are found, for pure decisions."""

from __future__ import annotations

from typing import Any

from placewire.agent.contract.entries import Sysctl
from placewire.agent.contract.state import NicFacts, ObservedState
from placewire.agent.reconcile.validate import ServerFacts, WayToController

FACTS = ServerFacts("s1", "netdev", (3, 1, 0), frozenset({"mgmt"}))
WAY = WayToController(frozenset({"10.9.0.1"}))


def nic(name: str, *addresses: str, **changes: Any) -> NicFacts:
    fields: dict[str, Any] = {
        "name": name, "mac": "02:00:00:00:00:01", "mtu_bytes": 1500, "up": True,
        "speed_bits_per_second": None, "driver": "veth", "rdma": False, "addresses": addresses,
        "bridge": None, "address_commands": addresses,
    }  # fmt: skip
    return NicFacts(**{**fields, **changes})


BARE = ObservedState(
    nics=(nic("nic0", "10.7.0.1/24"), nic("nic1", "10.7.1.1/24"), nic("mgmt", "10.9.0.1/24")),
    sysctls=(Sysctl(name="net.ipv4.conf.nic0.rp_filter", value="0"),),
)
