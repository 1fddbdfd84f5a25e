"""What every sharing answers: the one place where a way to share the network is described.

A sharing says what concurrent transfers get. Each has a file of its own beside this one, and
sharings.py names them all. S servers, R rails; all rates are payload bits per second; float64[S, S,
R] is a rate per (source server, destination server, rail).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import usable_rates, widest_rates


class Discipline(IntEnum):
    """How transfers that are under way at the same time meet in the compiled simulator.

    NEVER_MEET     each has its pair's rates to itself (the models `thesis` and, past the NICs,
                   `msr`)
    FIRST_COME     each (source device, destination device, rail) is a channel of a fixed rate
    MAX_MIN        the NICs are shared max-min fairly, with the neighbour's flows
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

    minimum: what the queue always has. maximum: what it never exceeds; None is the whole NIC.
    for_the_job: the queue carries the job to whatever server; else it is its one destination's.
    """

    source: str
    rail: str
    destinations: tuple[str, ...]
    minimum: float
    maximum: float | None
    for_the_job: bool = False


@dataclass(frozen=True)
class PromisedRate:
    """What one transfer through a queue gets at least while all promised ones run.

    paced: the sender holds itself to that rate, because no queue divides what arrives.
    """

    queue: JobQueue
    destination: str
    at_least: float
    paced: bool = False


class SharingPolicy(ABC):
    """One sharing. The defaults here are those of a network that is shaped pair by pair."""

    name: ClassVar[SharingName]
    discipline: ClassVar[Discipline]
    # Whether rates of pairs are part of a solution.
    decides_rates: ClassVar[bool] = False
    # Whether a pair's rate is a cap, so that it is the same however much others send.
    caps_pairs: ClassVar[bool] = False
    # Whether what a receiver takes in is limited under every model, the thesis' own too.
    always_limits_receiving: ClassVar[bool] = False
    # Whether the network keeps the job's floor of a NIC against what others send.
    protects_the_job: ClassVar[bool] = True
    # Whether ranks send in the order of urgency, instead of in the order of the program.
    sends_most_urgent_first: ClassVar[bool] = False
    # Why a pair has the rate that it has, where that is no decision: for people.
    why_this_rate: ClassVar[str] = "no rate of its own"

    def kept_fraction(self, floor: float) -> float:
        """The part of each NIC that the job may count on whatever others want. floor: the part that
        a shaped network keeps for the job."""
        return floor

    def most_nic_rates(self, cluster: Cluster, floor: float) -> FloatArray:
        """float64[S, R]: the most that the job ever carries on each NIC, in each direction."""
        return usable_rates(cluster, self.kept_fraction(floor))

    def most_pair_rates(self, nic_rates: FloatArray) -> FloatArray:
        """float64[S, S, R]: the most that a pair ever gets, from the most that the job carries on
        each NIC float64[S, R]."""
        return widest_rates(nic_rates)

    def expected_pair_rates(self, usable: FloatArray) -> FloatArray:
        """float64[S, S, R]: what a pair can count on before anything is decided, from what the job
        may count on of each NIC float64[S, R]."""
        return widest_rates(usable)

    @abstractmethod
    def rates_in_force(self, usable: FloatArray, decided: FloatArray | None) -> FloatArray:
        """float64[S, S, R]: what messages are cut by, and what paces them at most.

        decided: the solution's rates; given where decides_rates.
        """

    def recorded_rates(self, usable: FloatArray, decided: FloatArray | None) -> FloatArray | None:
        """float64[S, S, R] as a placement records them; None where pairs have no rates."""
        return decided

    @abstractmethod
    def rates_for_traffic(self, usable: FloatArray, traffic: FloatArray) -> FloatArray | None:
        """float64[S, S, R] for a job that places itself and sends in proportion to traffic
        float64[S, S]; None where pairs have no rates."""

    def reserved_rates(self, cluster: Cluster, floor: float) -> FloatArray:
        """float64[S, R]: what of each NIC is the job's, so that no other queue is promised it."""
        return usable_rates(cluster, self.kept_fraction(floor))

    def queues(self, allocation: Allocation) -> tuple[JobQueue, ...]:
        """By server, rail and destination, in the cluster's order."""
        return tuple(
            JobQueue(source, rail, (destination,), minimum=rate, maximum=rate)
            for source, destination, rail, rate in allocation.rates_bits_per_second
            if rate > 0
        )

    def promises(self, queues: Sequence[JobQueue]) -> tuple[PromisedRate, ...]:
        """Of these queues, what all transfers together get: a measurement that the network must
        pass."""
        return tuple(PromisedRate(queue, queue.destinations[0], queue.minimum) for queue in queues)


def arriving(promised: Sequence[PromisedRate]) -> Counter[tuple[str, str]]:
    """How many promised transfers arrive at each (rail, destination)."""
    return Counter((one.queue.rail, one.destination) for one in promised)
