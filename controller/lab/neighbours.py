"""Refuses a lab with more neighbours than this machine's kernel keeps.

The kernel has one table of neighbours (ARP) for all of its network namespaces. Where it is full,
packets are lost, those of the machine's own network too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from placewire.controller.errors import PlacewireError
from placewire.controller.lab.record import LabRecord

_LIMIT = "net.ipv4.neigh.default.gc_thresh3"
_IN_USE_FILE = Path("/proc/net/stat/arp_cache")


def require_room(lab: LabRecord, others: Iterable[LabRecord]) -> None:
    """others: those that are up, whose NICs may not have found all their neighbours yet. Raises
    PlacewireError. Where the kernel does not tell its limit, nothing is refused."""
    try:
        limit = int(Path("/proc/sys", *_LIMIT.split(".")).read_text())
        in_use = entries_in_use(_IN_USE_FILE.read_text())
    except OSError:
        return
    refuse_too_many(neighbours_of(lab), max(in_use, sum(map(neighbours_of, others))), limit)


def neighbours_of(lab: LabRecord) -> int:
    """How many entries the servers and the controller have in tables of neighbours, where each NIC
    talks with all others of its rail."""
    on_rails = Counter(nic.rail for server in lab.servers for nic in server.nics)
    return sum(n * (n - 1) for n in on_rails.values()) + 2 * len(lab.servers)


def entries_in_use(statistics: str) -> int:
    """statistics: a line of names, then one of hexadecimal numbers for each processor, of which the
    first counts the whole table."""
    return int(statistics.splitlines()[1].split()[0], 16)


def refuse_too_many(wanted: int, in_use: int, limit: int) -> None:
    if wanted + in_use <= limit:
        return
    room = 1 << (wanted + in_use).bit_length()
    raise PlacewireError(
        f"the servers of this lab may have {wanted} neighbours in all. With those of the machine "
        f"and of its other labs ({in_use}) that is more than the {limit} that this machine's "
        "kernel keeps for all network namespaces together; beyond, packets are lost, those of the "
        "machine's own network too",
        where="lab",
        remedy=f"`sysctl -w {_LIMIT}={room}`, or a lab of fewer servers or rails",
    )
