"""Sharing `unshaped`: the network as it is. Transfers share the NICs max-min fairly.

A neighbour's flows take part as any others do: nothing is kept for the job, and one transfer beside
them counts on a flow's fair part. There are no queues, and nothing is promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import NEIGHBOUR_FLOWS, widest_rates
from placewire.optimizer.network.sharing import (
    Discipline,
    JobQueue,
    PromisedRate,
    SharingPolicy,
)


class Unshaped(SharingPolicy):
    name: ClassVar[SharingName] = "unshaped"
    discipline = Discipline.MAX_MIN
    protects_the_job = False
    why_this_rate = "no rate of its own: whoever sends shares the NICs"

    def kept_fraction(self, floor: float) -> float:
        """One flow's part beside the neighbour's; several flows may get more together."""
        return 1.0 / (1 + NEIGHBOUR_FLOWS)

    def most_nic_rates(self, cluster: Cluster, floor: float) -> FloatArray:
        """The whole NIC: against many transfers the neighbour's flows may get less than they
        want."""
        return cluster.nic_rates

    def rates_in_force(self, usable: FloatArray, decided: FloatArray | None) -> FloatArray:
        return widest_rates(usable)

    def recorded_rates(self, usable: FloatArray, decided: FloatArray | None) -> None:
        return None

    def rates_for_traffic(self, usable: FloatArray, traffic: FloatArray) -> None:
        return None

    def queues(self, allocation: Allocation) -> tuple[JobQueue, ...]:
        return ()

    def promises(self, queues: Sequence[JobQueue]) -> tuple[PromisedRate, ...]:
        return ()
