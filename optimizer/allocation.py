"""The bandwidth allocated to a job: the network is shaped, promises and is measured by it."""

from __future__ import annotations

from typing import Protocol

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName


class Allocation(Protocol):
    """A placement, or the traffic of a script that places itself (network/script_allocation.py)."""

    @property
    def cluster(self) -> Cluster:
        """Its rates are payload rates."""

    @property
    def sharing(self) -> SharingName: ...

    @property
    def floor(self) -> float:
        """The part of each NIC that is kept for the job where others want the NIC too."""

    @property
    def rates_bits_per_second(self) -> tuple[tuple[str, str, str, float], ...]:
        """(source server, destination server, rail, payload bits per second) of decided rates."""

    @property
    def talks(self) -> frozenset[tuple[str, str, str]]:
        """(source server, destination server, rail) of every path that carries bytes."""
