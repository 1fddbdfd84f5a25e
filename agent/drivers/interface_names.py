"""Finds interfaces by any of their names: the kernel's, or one that `ip link property` added."""

from __future__ import annotations

from collections.abc import Collection

from placewire.agent.drivers.command import parsed, run


def interfaces_named(names: Collection[str]) -> dict[str, str]:
    """By name that an interface of this server has: the kernel's name of that interface. Raises
    EffectError."""
    if not names:
        return {}
    found = {}
    for link in parsed(run(["ip", "-j", "link", "show"])):
        for name in (link["ifname"], *link.get("altnames", ())):
            if name in names:
                found[name] = link["ifname"]
    return found
