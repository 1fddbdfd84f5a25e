"""The base class of every sharing, and the values with which a sharing answers.

A sharing says what concurrent transfers get of the network. Each has a file of its own beside this
one; sharings.py lists them all. There are S servers and R rails; all rates are payload bits per
second; float64[S, S, R] is a rate per (source server, destination server, rail).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import Capacity, usable_rates, widest_rates
from placewire.optimizer.network.traffic import concurrent_rates


class Discipline(IntEnum):
    """What concurrent transfers get in the compiled simulator.

    NEVER_MEET     each has its pair's rates to itself (the model `thesis`)
    FIRST_COME     each (source device, destination device, rail) is a channel of a fixed rate
    MAX_MIN        they share the NICs max-min fairly, with the neighbour's flows
    LENDING        each pair has its minimum, and borrows what its sender has left
    MOST_URGENT    each sender serves its most urgent message first
    """

    NEVER_MEET = 0
    FIRST_COME = 1
    MAX_MIN = 2
    LENDING = 3
    MOST_URGENT = 4


@dataclass(frozen=True)
class JobQueue:
    """One queue that carries the job on one NIC of `source`, to `destinations`.

    minimum: the rate that the queue always has. maximum: the rate that it never exceeds; None for
    that of the NIC. for_the_job: the queue carries the job to any server; else to one destination.
    """

    source: str
    rail: str
    destinations: tuple[str, ...]
    minimum: float
    maximum: float | None
    for_the_job: bool = False


@dataclass(frozen=True)
class PromisedRate:
    """The rate that one transfer through a queue gets at least while all promised transfers run.

    paced: the sender holds itself to that rate, because no queue divides what arrives.
    """

    queue: JobQueue
    destination: str
    at_least: float
    paced: bool = False


class SharingPolicy:
    """One sharing. By default, pairs of servers have rates of their own only if it decides them."""

    name: ClassVar[SharingName]
    discipline: ClassVar[Discipline]
    # Whether the rates of pairs are part of a solution.
    decides_rates: ClassVar[bool] = False
    # Whether a pair's rate is a cap, and so the same however much others send.
    caps_pairs: ClassVar[bool] = False
    # Whether every model limits what a receiver takes in, the thesis' own too.
    always_limits_receiving: ClassVar[bool] = False
    # Whether the network keeps the job's floor of a NIC against what others send.
    protects_the_job: ClassVar[bool] = True
    # Whether ranks send in the order of urgency, instead of in the order of the program.
    sends_most_urgent_first: ClassVar[bool] = False
    # For people: why a pair has its rate, where that was not decided.
    why_this_rate: ClassVar[str] = "no rate of its own"

    def kept_fraction(self, floor: float) -> float:
        """The part of each NIC that the job may count on whatever others want; floor: the part that
        a shaped network keeps for the job."""
        return floor

    def most_nic_rates(self, cluster: Cluster, floor: float) -> FloatArray:
        """float64[S, R]: the most that the job ever carries on each NIC, in each direction."""
        return usable_rates(cluster, self.kept_fraction(floor))

    def most_pair_rates(self, most: Capacity) -> FloatArray:
        """float64[S, S, R]: the most that each pair ever gets, from the most that the job ever
        carries on the network."""
        return widest_rates(most)

    def expected_pair_rates(self, usable: Capacity) -> FloatArray:
        """float64[S, S, R]: what each pair can count on before anything is decided, from what the
        job may count on of the network."""
        return widest_rates(usable)

    def rates_in_force(self, usable: Capacity, decided: FloatArray | None) -> FloatArray:
        """float64[S, S, R]: the rates by which messages are cut, and which pace them at most.

        decided: the solution's rates; given where decides_rates.
        """
        return widest_rates(usable)

    def recorded_rates(self, usable: Capacity, decided: FloatArray | None) -> FloatArray | None:
        """float64[S, S, R]: the rates that a placement records; None where pairs have none."""
        return decided

    def rates_for_traffic(self, usable: Capacity, traffic: FloatArray) -> FloatArray | None:
        """float64[S, S, R]: the rates for a job that places itself and sends in proportion to
        traffic float64[S, S]; None where pairs have none."""
        if self.decides_rates:
            return concurrent_rates(usable, traffic)
        return self.recorded_rates(usable, None)

    def reserved_rates(self, cluster: Cluster, floor: float) -> FloatArray:
        """float64[S, R]: the part of each NIC that no queue but the job's is promised."""
        return usable_rates(cluster, self.kept_fraction(floor))

    def queues(self, allocation: Allocation) -> tuple[JobQueue, ...]:
        """The job's queues, in the cluster's order of servers, rails and destinations."""
        return tuple(
            JobQueue(source, rail, (destination,), minimum=rate, maximum=rate)
            for source, destination, rail, rate in allocation.rates_bits_per_second
            if rate > 0
        )

    def promises(self, queues: Sequence[JobQueue]) -> tuple[PromisedRate, ...]:
        """What transfers through these queues get while all of them run: the network must pass a
        measurement of this."""
        return tuple(PromisedRate(queue, queue.destinations[0], queue.minimum) for queue in queues)


def arriving(promised: Sequence[PromisedRate]) -> Counter[tuple[str, str]]:
    """The number of promised transfers that arrive at each (rail, destination)."""
    return Counter((one.queue.rail, one.destination) for one in promised)
