"""Sharing `unshaped`: the network as it is, on which transfers share the NICs max-min fairly.

A neighbour's flows take part like any others: nothing is kept for the job, and a transfer beside
them can count on one flow's fair part. There are no queues, and nothing is promised.
"""

from __future__ import annotations

from typing import ClassVar

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import NEIGHBOUR_FLOWS
from placewire.optimizer.network.sharing import Discipline, JobQueue, SharingPolicy


class Unshaped(SharingPolicy):
    name: ClassVar[SharingName] = "unshaped"
    discipline = Discipline.MAX_MIN
    protects_the_job = False
    why_this_rate = "no rate of its own: whoever sends shares the NICs"

    def kept_fraction(self, floor: float) -> float:
        """One flow's part beside the neighbour's flows; several transfers may get more together."""
        return 1.0 / (1 + NEIGHBOUR_FLOWS)

    def most_nic_rates(self, cluster: Cluster, floor: float) -> FloatArray:
        """The whole NIC: beside many transfers, the neighbour may get less than it wants."""
        return cluster.nic_rates

    def queues(self, allocation: Allocation) -> tuple[JobQueue, ...]:
        return ()
