"""What NICs and the uplinks of pods carry, and which rates of pairs are limited together.

S servers, P pods and R rails stand in the cluster's order; all rates are payload bits per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.network.transfers import with_a_rail

# Background traffic on a NIC is modelled as this many flows in each direction.
NEIGHBOUR_FLOWS = 8
# Every pair in use keeps this part of a NIC, for the acknowledgements of the other direction.
LEAST_PAIR_FRACTION = 0.02
# A pair's groups are: transmitting NIC, receiving NIC, uplink out of a pod, uplink into a pod.
_FIRST_OF_UPLINKS = 2


def usable_rates(cluster: Cluster, kept_fraction: float) -> FloatArray:
    """float64[S, R]: what the job may count on of each NIC: what others leave, but at least
    kept_fraction of it, which the network keeps for the job."""
    rates = cluster.nic_rates
    usable: FloatArray = np.maximum(rates - cluster.background, kept_fraction * rates)
    return usable


@dataclass(frozen=True)
class Capacity:
    """What the network carries in each direction: nics float64[S, R] of each NIC, uplinks
    float64[P, R] of each pod; pod int64[S]: of each server. P is 0 where there are no pods."""

    nics: FloatArray
    uplinks: FloatArray
    pod: IntArray

    def with_a_rail(self) -> Capacity:
        return Capacity(with_a_rail(self.nics), with_a_rail(self.uplinks), self.pod)


def capacity_of(cluster: Cluster, nic_rates: FloatArray) -> Capacity:
    """nic_rates float64[S, R]: what is counted on of each NIC; of an uplink it is all, because a
    plan states what the job may have of it."""
    return Capacity(nic_rates, cluster.uplink_rates, cluster.pod_of_server)


def usable_capacity(cluster: Cluster, kept_fraction: float) -> Capacity:
    """As usable_rates, with the uplinks."""
    return capacity_of(cluster, usable_rates(cluster, kept_fraction))


def widest_rates(capacity: Capacity) -> FloatArray:
    """float64[S, S, R]: what each pair of servers gets on each rail when no other pair sends."""
    rates = _widest_of_nics(capacity.nics)
    if not len(capacity.uplinks):
        return rates
    limits = network_limits(capacity)
    lowered: FloatArray = np.minimum(rates, limits.least(limits.capacity, _FIRST_OF_UPLINKS))
    return lowered


def even_rates(capacity: Capacity) -> FloatArray:
    """float64[S, S, R]: each NIC split evenly over the other servers on its rail, and each uplink
    over the pairs of servers that it joins."""
    others = np.maximum((capacity.nics > 0).sum(axis=0) - 1, 1)
    rates: FloatArray = _widest_of_nics(capacity.nics) / others
    return np.minimum(rates, _even_of_uplinks(capacity, rates)) if len(capacity.uplinks) else rates


def least_pair_rates(capacity: Capacity, worthwhile: FloatArray) -> FloatArray:
    """float64[S, S, R]: what a pair in use keeps on each rail that serves it, as a part of what it
    could have alone there (worthwhile float64[S, S, R]): the same part on all its rails.

    Together such rates take at most half of a NIC or an uplink, however many servers talk.
    """
    servers = len(worthwhile)
    part = np.full((servers, servers), min(LEAST_PAIR_FRACTION, 0.5 / max(servers - 1, 1)))
    if len(capacity.uplinks):
        half = 0.5 * _even_of_uplinks(capacity, worthwhile)
        most = np.divide(half, worthwhile, out=np.ones_like(half), where=worthwhile > 0)
        part = np.minimum(part, most.min(axis=2, initial=1.0))
    return part[:, :, None] * worthwhile


def _widest_of_nics(nics: FloatArray) -> FloatArray:
    rates: FloatArray = np.minimum(nics[:, None, :], nics[None, :, :])
    rates[np.arange(len(rates)), np.arange(len(rates))] = 0.0
    return rates


def _even_of_uplinks(capacity: Capacity, rates: FloatArray) -> FloatArray:
    """float64[S, S, R]: the even part of each pair, of those with a rate, in its uplinks; infinite
    within a pod."""
    limits = network_limits(capacity)
    pairs = np.maximum(limits.load((rates > 0).astype(np.float64)), 1)
    return limits.least(limits.capacity / pairs, _FIRST_OF_UPLINKS)


@dataclass(frozen=True)
class RateLimits:
    """Groups of pairs whose rates on one rail together stay within a capacity.

    Each NIC is two groups: the pairs to which it transmits, and those from which it receives. So
    is each pod: the pairs that leave it, and those that enter it. All code that sums rates goes
    through this class.

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


def network_limits(capacity: Capacity, *, receiving: bool = True) -> RateLimits:
    """The limits of NICs and uplinks; receiving: whether they limit what a NIC receives, too.

    A pair within a pod uses no uplink: its group there is one of infinite capacity, the last.
    """
    servers, rails = capacity.nics.shape
    pods, pod = len(capacity.uplinks), capacity.pod
    groups = np.empty((rails, servers, servers, 4 if pods else 2), dtype=np.int64)
    groups[..., 0] = np.arange(servers)[:, None]
    groups[..., 1] = servers + np.arange(servers)[None, :]
    carried = [capacity.nics.T, capacity.nics.T]
    if pods:
        apart, unlimited = pod[:, None] != pod[None, :], 2 * (servers + pods)
        groups[..., 2] = np.where(apart, 2 * servers + pod[:, None], unlimited)
        groups[..., 3] = np.where(apart, 2 * servers + pods + pod[None, :], unlimited)
        carried += [capacity.uplinks.T, capacity.uplinks.T, np.full((rails, 1), np.inf)]
    kinds = groups if receiving else np.delete(groups, 1, axis=3)
    return RateLimits(np.concatenate(carried, axis=1), kinds)
