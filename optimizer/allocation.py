"""Bandwidth as it was allocated: what the network compiles, promises and measures."""

from __future__ import annotations

from typing import Protocol

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName


class Allocation(Protocol):
    """A placement is one; the traffic of a job that nobody placed is another (traffic.py)."""

    @property
    def cluster(self) -> Cluster:
        """Payload rates."""

    @property
    def sharing(self) -> SharingName: ...

    @property
    def floor(self) -> float:
        """Of each NIC, the part that is kept for the job where others want it too."""

    @property
    def rates_bits_per_second(self) -> tuple[tuple[str, str, str, float], ...]:
        """(source server, destination server, rail, payload bits per second), where rates of pairs
        are decided."""

    @property
    def talks(self) -> frozenset[tuple[str, str, str]]:
        """(source server, destination server, rail) of all that is sent."""
