"""What the NICs give to each pair of servers, from the cluster and the rates of the file alone.

Keys are (server, rail) for a NIC and (source server, destination server, rail) for a pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from placewire.optimizer.allocation import Allocation

# A busy neighbour of one NIC is this many flows in each direction.
NEIGHBOUR_FLOWS = 8

_SHAPES_NOTHING = "unshaped"

NicKey = tuple[str, str]
PairKey = tuple[str, str, str]


def nic_rates(allocation: Allocation) -> dict[NicKey, float]:
    return {
        (server.name, nic.rail): nic.rate_bits_per_second
        for server in allocation.cluster.servers
        for nic in server.nics
    }


def neighbours(allocation: Allocation) -> dict[NicKey, float]:
    """What others want of each NIC, in each direction."""
    return {
        (server.name, nic.rail): nic.background_bits_per_second
        for server in allocation.cluster.servers
        for nic in server.nics
    }


def usable_rates(allocation: Allocation) -> dict[NicKey, float]:
    """What the job may count on: what others leave, and at least its floor; in an unshaped network,
    which keeps nothing, what one flow gets beside the neighbour's."""
    kept = 1 / (1 + NEIGHBOUR_FLOWS) if allocation.sharing == _SHAPES_NOTHING else allocation.floor
    others, rates = neighbours(allocation), nic_rates(allocation)
    return {key: max(rate - others[key], kept * rate) for key, rate in rates.items()}


def widest_rates(allocation: Allocation) -> dict[PairKey, float]:
    """Each pair with its two NICs to itself."""
    usable = usable_rates(allocation)
    servers = [server.name for server in allocation.cluster.servers]
    return {
        (s, t, rail): min(rate, usable[t, rail])
        for (s, rail), rate in usable.items()
        for t in servers
        if t != s and (t, rail) in usable
    }


def even_rates(allocation: Allocation) -> dict[PairKey, float]:
    """Each NIC split evenly over the other servers on its rail."""
    on_rail = Counter(rail for _, rail in usable_rates(allocation))
    return {
        (s, t, rail): rate / (on_rail[rail] - 1)
        for (s, t, rail), rate in widest_rates(allocation).items()
    }


def ceilings(allocation: Allocation) -> dict[PairKey, float]:
    """Under `guarantee`: how far each pair may borrow above its minimum. A receiver's spare rate is
    divided in proportion to the minimums, so that no receiver is asked for more than it has."""
    usable = usable_rates(allocation)
    least = {(s, t, rail): rate for s, t, rail, rate in allocation.rates_bits_per_second}
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
    """As the file has them."""
    return {(s, t, rail): rate for s, t, rail, rate in allocation.rates_bits_per_second}


def over_rails(rates: Mapping[PairKey, float]) -> dict[tuple[str, str], float]:
    """Per server pair the sum over its rails."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    for (s, t, _), rate in rates.items():
        total[s, t] += rate
    return total
