"""Computes the rate of each pair of servers again, from the cluster and the file's rates alone.

Keys are (server, rail) for a NIC and (source server, destination server, rail) for a pair. A
crossing is a pod and the direction in which a pair passes its uplink.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.cluster import Nic
from placewire.optimizer.names import WITHOUT_SHAPING

# A neighbour on a NIC sends, and receives, this many flows.
NEIGHBOUR_FLOWS = 8

NicKey = tuple[str, str]
PairKey = tuple[str, str, str]
Crossing = tuple[Literal["leaves", "enters"], str]


def nic_rates(allocation: Allocation) -> dict[NicKey, float]:
    return {key: nic.rate_bits_per_second for key, nic in _nics(allocation)}


def windows(allocation: Allocation) -> dict[NicKey, float]:
    """The bits to one receiver that each NIC has handed over at most."""
    return {key: nic.window_bytes * 8.0 for key, nic in _nics(allocation)}


def low_water(allocation: Allocation) -> dict[NicKey, float]:
    """The bits left of what each NIC sends when the next message to another receiver begins."""
    return {key: nic.low_water_bytes * 8.0 for key, nic in _nics(allocation)}


def neighbours(allocation: Allocation) -> dict[NicKey, float]:
    """The rate that other traffic wants of each NIC, in each direction."""
    return {key: nic.background_bits_per_second for key, nic in _nics(allocation)}


def _nics(allocation: Allocation) -> Iterator[tuple[NicKey, Nic]]:
    for server in allocation.cluster.servers:
        for nic in server.nics:
            yield (server.name, nic.rail), nic


def usable_rates(allocation: Allocation) -> dict[NicKey, float]:
    """The rate that the job may count on: the rate that others leave, and at least its floor. An
    unshaped network keeps no floor; there one flow gets its share beside the neighbour's flows."""
    without_floor = allocation.sharing == WITHOUT_SHAPING
    kept = 1 / (1 + NEIGHBOUR_FLOWS) if without_floor else allocation.floor
    others, rates = neighbours(allocation), nic_rates(allocation)
    return {key: max(rate - others[key], kept * rate) for key, rate in rates.items()}


class Uplinks:
    """The uplinks of pods: their rates, and which of them a pair of servers passes."""

    def __init__(self, allocation: Allocation) -> None:
        pods = allocation.cluster.pods
        self._pod = {server: pod.name for pod in pods for server in pod.servers}
        self.rate = {
            (pod.name, uplink.rail): uplink.rate_bits_per_second
            for pod in pods
            for uplink in pod.uplinks
        }

    def passed(self, source: str, destination: str) -> tuple[Crossing, ...]:
        """() for two servers of one pod, and where there are no pods."""
        out, into = self._pod.get(source), self._pod.get(destination)
        if out is None or into is None or out == into:
            return ()
        return ("leaves", out), ("enters", into)

    def most(self, crossing: Crossing, rail: str) -> float:
        return self.rate.get((crossing[1], rail), 0.0)

    def sums(self, rates: Iterable[tuple[PairKey, float]]) -> dict[tuple[Crossing, str], float]:
        """Returns the sum of these rates over each uplink, by crossing and rail."""
        total: dict[tuple[Crossing, str], float] = defaultdict(float)
        for (source, destination, rail), rate in rates:
            for crossing in self.passed(source, destination):
                total[crossing, rail] += rate
        return total


def widest_rates(allocation: Allocation) -> dict[PairKey, float]:
    """The rate of each pair that has its two NICs, and its two uplinks, to itself."""
    uplinks = Uplinks(allocation)
    return {
        (s, t, rail): min([rate, *(uplinks.most(one, rail) for one in uplinks.passed(s, t))])
        for (s, t, rail), rate in _widest_of_nics(allocation).items()
    }


def _widest_of_nics(allocation: Allocation) -> dict[PairKey, float]:
    usable = usable_rates(allocation)
    servers = [server.name for server in allocation.cluster.servers]
    return {
        (s, t, rail): min(rate, usable[t, rail])
        for (s, rail), rate in usable.items()
        for t in servers
        if t != s and (t, rail) in usable
    }


def even_rates(allocation: Allocation) -> dict[PairKey, float]:
    """Each NIC that the job can use, split evenly over the other servers with such a NIC on its
    rail, and each uplink over the pairs that pass it. Pairs that get nothing are left out."""
    on_rail = Counter(rail for (_, rail), rate in usable_rates(allocation).items() if rate > 0)
    of_nics = {
        (s, t, rail): rate / (on_rail[rail] - 1)
        for (s, t, rail), rate in _widest_of_nics(allocation).items()
        if rate > 0
    }
    uplinks = Uplinks(allocation)
    pairs = uplinks.sums((pair, 1.0) for pair in of_nics)
    found = {}
    for (s, t, rail), rate in of_nics.items():
        parts = [uplinks.most(one, rail) / pairs[one, rail] for one in uplinks.passed(s, t)]
        if (least := min([rate, *parts])) > 0:
            found[s, t, rail] = least
    return found


def ceilings(allocation: Allocation) -> dict[PairKey, float]:
    """Under `guarantee`: the most that a pair may have, its minimum and what it borrows. Spare
    rate of a receiver, and of an uplink, is divided in proportion to minimums, so that neither is
    ever oversubscribed."""
    usable, least = usable_rates(allocation), recorded_rates(allocation)
    received: dict[NicKey, float] = defaultdict(float)
    for (_, t, rail), rate in least.items():
        received[t, rail] += rate
    uplinks = Uplinks(allocation)
    passing = uplinks.sums(least.items())
    highest: dict[PairKey, float] = {}
    for (s, t, rail), rate in least.items():
        spare = max(0.0, usable[t, rail] - received[t, rail])
        borrow = spare * rate / received[t, rail] if rate > 0 else 0.0
        highest[s, t, rail] = min(rate + borrow, usable[s, rail], usable[t, rail])
        for one in uplinks.passed(s, t) if rate > 0 else ():
            unused = max(0.0, uplinks.most(one, rail) - passing[one, rail])
            lent = unused * rate / passing[one, rail]
            highest[s, t, rail] = min(highest[s, t, rail], rate + lent)
    return highest


def recorded_rates(allocation: Allocation) -> dict[PairKey, float]:
    """The rates of the file."""
    return {(s, t, rail): rate for s, t, rail, rate in allocation.rates_bits_per_second}


def over_rails(rates: Mapping[PairKey, float]) -> dict[tuple[str, str], float]:
    """The rate of each pair of servers, summed over rails."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    for (s, t, _), rate in rates.items():
        total[s, t] += rate
    return total
