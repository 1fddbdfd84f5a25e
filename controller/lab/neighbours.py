"""Refuses a lab with more neighbours than this machine's kernel keeps.

The kernel has one table of neighbours (ARP) for all of its network namespaces. Where it is full,
packets are lost, those of the machine's own network too.
"""

from __future__ import annotations

from pathlib import Path

from placewire.controller.errors import PlacewireError
from placewire.controller.lab.shape import LabShape

_LIMIT = "net.ipv4.neigh.default.gc_thresh3"
_IN_USE_FILE = Path("/proc/net/stat/arp_cache")


def require_room(shape: LabShape) -> None:
    """Raises PlacewireError. Where the kernel does not tell its limit, nothing is refused."""
    try:
        limit = int(Path("/proc/sys", *_LIMIT.split(".")).read_text())
        in_use = entries_in_use(_IN_USE_FILE.read_text())
    except OSError:
        return
    refuse_too_many(shape.neighbours, in_use, limit)


def entries_in_use(statistics: str) -> int:
    """statistics: a line of names, then one of hexadecimal numbers for each processor, of which the
    first counts the whole table."""
    return int(statistics.splitlines()[1].split()[0], 16)


def refuse_too_many(wanted: int, in_use: int, limit: int) -> None:
    if wanted + in_use <= limit:
        return
    room = 1 << (wanted + in_use).bit_length()
    raise PlacewireError(
        f"the servers of this lab have {wanted} neighbours in all; this machine's kernel keeps "
        f"{limit} for all network namespaces together, and has {in_use}: packets would be lost, "
        "those of the machine's own network too",
        where="lab",
        remedy=f"`sysctl -w {_LIMIT}={room}`, or a lab of fewer servers or rails",
    )
