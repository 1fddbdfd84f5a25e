"""Computes the rate of each pair of servers again, from the cluster and the file's rates alone.

Keys are (server, rail) for a NIC and (source server, destination server, rail) for a pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.cluster import Nic
from placewire.optimizer.names import WITHOUT_SHAPING

# A neighbour on a NIC sends, and receives, this many flows.
NEIGHBOUR_FLOWS = 8

NicKey = tuple[str, str]
PairKey = tuple[str, str, str]


def nic_rates(allocation: Allocation) -> dict[NicKey, float]:
    return {key: nic.rate_bits_per_second for key, nic in _nics(allocation)}


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


def widest_rates(allocation: Allocation) -> dict[PairKey, float]:
    """The rate of each pair that has its two NICs to itself."""
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
    rail. Pairs that get nothing are left out."""
    on_rail = Counter(rail for (_, rail), rate in usable_rates(allocation).items() if rate > 0)
    return {
        (s, t, rail): rate / (on_rail[rail] - 1)
        for (s, t, rail), rate in widest_rates(allocation).items()
        if rate > 0
    }


def ceilings(allocation: Allocation) -> dict[PairKey, float]:
    """Under `guarantee`: the most that a pair may have, its minimum and what it borrows. Spare
    rate of a receiver is divided in proportion to minimums, so that it is never oversubscribed."""
    usable, least = usable_rates(allocation), recorded_rates(allocation)
    received: dict[NicKey, float] = defaultdict(float)
    for (_, t, rail), rate in least.items():
        received[t, rail] += rate
    highest: dict[PairKey, float] = {}
    for (s, t, rail), rate in least.items():
        spare = max(0.0, usable[t, rail] - received[t, rail])
        borrow = spare * rate / received[t, rail] if rate > 0 else 0.0
        highest[s, t, rail] = min(rate + borrow, usable[s, rail], usable[t, rail])
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
