"""Sharing `guarantee`: each pair of servers has a minimum on each rail, and may borrow above it.

The minimums are the decision. What a receiver has to spare is lent to the pairs into it in
proportion to their minimums, and so is what the uplinks of pods have. This fixes each pair's
ceiling beforehand (`lending_ceilings`), so that no receiver and no uplink can be oversubscribed
whatever the senders do. What a sender has left is lent
equally, to each pair up to its ceiling. Each destination has a queue from its pair's minimum to the
ceiling. Promised is at least the minimum and at most the ceiling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import Capacity, network_limits, usable_capacity
from placewire.optimizer.network.sharing import Discipline, JobQueue, SharingPolicy


class Guarantee(SharingPolicy):
    name: ClassVar[SharingName] = "guarantee"
    discipline = Discipline.LENDING
    decides_rates = True
    always_limits_receiving = True

    def rates_in_force(self, usable: Capacity, decided: FloatArray | None) -> FloatArray:
        assert decided is not None
        limits = network_limits(usable)
        return lending_ceilings(usable.nics, limits.groups, limits.capacity, decided)

    def queues(self, allocation: Allocation) -> tuple[JobQueue, ...]:
        cluster = allocation.cluster
        server = {one.name: s for s, one in enumerate(cluster.servers)}
        rail = {name: r for r, name in enumerate(cluster.rails)}
        usable = usable_capacity(cluster, self.kept_fraction(allocation.floor))
        minimums = np.zeros((len(server), len(server), len(rail)))
        for source, destination, on, rate in allocation.rates_bits_per_second:
            minimums[server[source], server[destination], rail[on]] = rate
        highest = self.rates_in_force(usable, minimums)
        return tuple(
            replace(
                queue,
                maximum=float(
                    highest[server[queue.source], server[queue.destinations[0]], rail[queue.rail]]
                ),
            )
            for queue in super().queues(allocation)
        )


def lending_ceilings(
    nic_rates: FloatArray, groups: IntArray, capacity: FloatArray, minimums: FloatArray
) -> FloatArray:
    """float64[S, S, R]: the most that each pair gets, from what each NIC carries float64[S, R], the
    limits of the network (groups int64[R, S, S, K], capacity float64[R, G]: nics.RateLimits) and
    the pairs' minimums float64[S, S, R].

    It is written in plain loops, so that the search can run it compiled.
    """
    servers, rails = nic_rates.shape
    highest = np.zeros((servers, servers, rails))
    for r in range(rails):
        for t in range(servers):
            total = 0.0
            for s in range(servers):
                total += minimums[s, t, r]
            if total <= 0.0:
                continue
            spare = max(nic_rates[t, r] - total, 0.0)
            for s in range(servers):
                lent = minimums[s, t, r] + spare * minimums[s, t, r] / total
                highest[s, t, r] = min(lent, nic_rates[s, r], nic_rates[t, r])
    # Only where there are pods: the groups of a pair beyond its two NICs.
    for j in range(2, groups.shape[3]):
        for r in range(rails):
            load = np.zeros(capacity.shape[1])
            for s in range(servers):
                for t in range(servers):
                    load[groups[r, s, t, j]] += minimums[s, t, r]
            for s in range(servers):
                for t in range(servers):
                    g = groups[r, s, t, j]
                    if minimums[s, t, r] > 0.0:
                        grown = minimums[s, t, r] * max(capacity[r, g] / load[g], 1.0)
                        highest[s, t, r] = min(highest[s, t, r], grown)
    return highest
