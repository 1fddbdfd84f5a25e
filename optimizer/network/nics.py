"""What NICs carry, and which rates of pairs are limited together.

S servers and R rails stand in the cluster's order; all rates are payload bits per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.cluster import Cluster

# Background traffic on a NIC is modelled as this many flows in each direction.
NEIGHBOUR_FLOWS = 8
# Every pair in use keeps this part of a NIC, for the acknowledgements of the other direction.
LEAST_PAIR_FRACTION = 0.02


def usable_rates(cluster: Cluster, kept_fraction: float) -> FloatArray:
    """float64[S, R]: what the job may count on of each NIC: what others leave, but at least
    kept_fraction of it, which the network keeps for the job."""
    rates = cluster.nic_rates
    usable: FloatArray = np.maximum(rates - cluster.background, kept_fraction * rates)
    return usable


def widest_rates(nic_rates: FloatArray) -> FloatArray:
    """float64[S, S, R]: what each pair of servers gets on each rail when no other pair sends, from
    what each NIC carries float64[S, R]."""
    rates: FloatArray = np.minimum(nic_rates[:, None, :], nic_rates[None, :, :])
    rates[np.arange(len(rates)), np.arange(len(rates))] = 0.0
    return rates


def even_rates(nic_rates: FloatArray) -> FloatArray:
    """float64[S, S, R]: each NIC float64[S, R] split evenly over the other servers on its rail."""
    others = np.maximum((nic_rates > 0).sum(axis=0) - 1, 1)
    rates: FloatArray = widest_rates(nic_rates) / others
    return rates


@dataclass(frozen=True)
class RateLimits:
    """Groups of pairs whose rates on one rail together stay within a capacity.

    Each NIC is two groups: the pairs to which it transmits, and those from which it receives. All
    code that sums rates goes through this class, so that uplinks between switches can be further
    groups one day.

    capacity float64[R, G]: bits per second of each group. groups int64[R, S, S, K]: the groups of
    each pair (source, destination), first that of the transmitting NIC.
    """

    capacity: FloatArray
    groups: IntArray

    def load(self, rates: FloatArray) -> FloatArray:
        """float64[R, G]: the sum of the rates float64[S, S, R] in each group."""
        total = np.zeros_like(self.capacity)
        rail = np.arange(len(total))[:, None, None]
        for k in range(self.groups.shape[3]):
            np.add.at(total, (rail, self.groups[..., k]), np.moveaxis(rates, 2, 0))
        return total

    def least(self, values: FloatArray, first: int = 0) -> FloatArray:
        """float64[S, S, R]: the least of the values float64[R, G] of each pair's groups, from its
        group number `first` on."""
        rail = np.arange(len(values))[:, None, None, None]
        found: FloatArray = np.moveaxis(values[rail, self.groups[..., first:]].min(axis=3), 0, 2)
        return found

    def room(self, rates: FloatArray) -> FloatArray:
        """float64[S, S, R]: the factor by which each pair's rate float64[S, S, R] may grow (below
        1: must shrink), so that every group is within its capacity if all its pairs do the same; 1
        where a group carries nothing."""
        load = self.load(rates)
        return self.least(np.divide(self.capacity, load, out=np.ones_like(load), where=load > 0))

    def within(self, rates: FloatArray) -> FloatArray:
        """The rates float64[S, S, R], lowered as far as the limits demand: first by what is sent,
        then by what is still received."""
        lowered = rates
        for kind in range(self.groups.shape[-1]):
            only = RateLimits(self.capacity, self.groups[..., kind : kind + 1])
            lowered = lowered * np.minimum(only.room(lowered), 1.0)
        return lowered


def nic_limits(nic_rates: FloatArray, *, receiving: bool = True) -> RateLimits:
    """The limits of NICs float64[S, R]; receiving: whether they limit what a NIC receives, too."""
    servers, rails = nic_rates.shape
    groups = np.empty((rails, servers, servers, 2), dtype=np.int64)
    groups[..., 0] = np.arange(servers)[:, None]
    groups[..., 1] = servers + np.arange(servers)[None, :]
    capacity = np.concatenate([nic_rates.T, nic_rates.T], axis=1)
    return RateLimits(capacity, groups if receiving else groups[..., :1])
