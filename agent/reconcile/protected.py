"""Says which interfaces the agent's configuration protects, by whatever name. Pure."""

from __future__ import annotations

from collections.abc import Collection

from placewire.agent.contract.state import NicFacts


def protected_names(names: Collection[str], nics: Collection[NicFacts]) -> frozenset[str]:
    """These names, and the kernel's name of each NIC that has one of them as an alternative name. A
    name that no NIC has now stays: one may come."""
    meant = (nic.name for nic in nics if not {*nic.other_names}.isdisjoint(names))
    return frozenset((*names, *meant))
