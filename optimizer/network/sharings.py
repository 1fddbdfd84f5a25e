"""The sharings by name. A new one needs a file here, a name in names.py and a row below."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.even import Even
from placewire.optimizer.network.guarantee import Guarantee
from placewire.optimizer.network.job import Job
from placewire.optimizer.network.sharing import SharingPolicy
from placewire.optimizer.network.strict import Strict
from placewire.optimizer.network.unshaped import Unshaped

SHARINGS: Mapping[SharingName, SharingPolicy] = {
    policy.name: policy for policy in (Strict(), Guarantee(), Job(), Even(), Unshaped())
}


def part_of_bound(
    cluster: Cluster, floor: float, proven_under: SharingName, sharing: SharingName
) -> float:
    """Returns the part of a bound, proven under one sharing, that holds under another.

    Where NICs may carry more of the job than under the first, a step takes at least this part of
    what it took there: slowed down as a whole until no NIC carries more, it is a step of the first.
    """
    before, now = (
        SHARINGS[name].most_nic_rates(cluster, floor) for name in (proven_under, sharing)
    )
    more = now > before
    return float((before[more] / now[more]).min(initial=1.0))
