"""The traffic of a placement, rates by its volume, and how a message is cut over rails and sent.

Here and in the other kernels, loops replace slices and sums of arrays: those take seconds to
compile.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import Tables
from placewire.optimizer.network import guarantee
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES

_CUT_BITS = CUT_THRESHOLD_BYTES * 8.0


@compiled
def device_traffic(tables: Tables, device: IntArray) -> FloatArray:
    """float64[D, D]: bits of all messages over rails, one per (tensor, destination device)."""
    devices = len(tables.server)
    traffic = np.zeros((devices, devices))
    seen = np.full(devices, -1, dtype=np.int64)
    for e in range(len(tables.producer)):
        if tables.bits[e] == 0.0:
            continue
        a = device[tables.producer[e]]
        for k in range(tables.consumers_start[e], tables.consumers_start[e + 1]):
            b = device[tables.consumers[k]]
            if b != a and seen[b] != e:
                seen[b] = e
                if tables.path_rate[a, b] == 0.0:
                    traffic[a, b] += tables.bits[e]
    return traffic


@compiled
def channel_rates(tables: Tables, traffic: FloatArray, rates: FloatArray) -> FloatArray:
    """float64[D, D, R]: the rate of each channel; device pairs in use share the rate of their pair
    of servers equally."""
    devices, servers, rails = len(tables.server), rates.shape[0], rates.shape[2]
    in_use = np.zeros((servers, servers))
    for a in range(devices):
        for b in range(devices):
            if traffic[a, b] > 0.0:
                in_use[tables.server[a], tables.server[b]] += 1.0
    channels = np.zeros((devices, devices, rails))
    for a in range(devices):
        for b in range(devices):
            s, t = tables.server[a], tables.server[b]
            if traffic[a, b] > 0.0:
                for r in range(rails):
                    channels[a, b, r] = rates[s, t, r] / in_use[s, t]
    return channels


# The search runs the same function as the sharing `guarantee`, but compiled.
lending_ceilings = compiled(guarantee.lending_ceilings)


@compiled
def cut(rates: FloatArray, bits: float, cuts_equally: bool, parts: FloatArray) -> None:
    """Writes into parts float64[R] the bits of a message on each rail, at rates float64[R].

    A message is cut in proportion to the rates, or equally over those that are not 0; a small one
    goes whole over the fastest rail. All parts are 0 where there is no rate.
    """
    total, fastest, used = 0.0, 0, 0
    for r in range(len(parts)):
        parts[r] = 0.0
        total += rates[r]
        if rates[r] > 0.0:
            used += 1
        if rates[r] > rates[fastest]:
            fastest = r
    if total <= 0.0:
        return
    if bits < _CUT_BITS:
        parts[fastest] = bits
        return
    for r in range(len(parts)):
        if rates[r] > 0.0:
            parts[r] = bits / used if cuts_equally else bits * rates[r] / total


@compiled
def send(
    path_setup: float, path_rate: float, paths_queue: bool, setup_seconds: float,
    cuts_equally: bool, channels: FloatArray, free: FloatArray, a: int, b: int, bits: float,
    queued: float, part_start: FloatArray, part_finish: FloatArray,
) -> float:  # fmt: skip
    """Puts one message on its first-come channels; returns its arrival, inf where no rail is there.

    part_start and part_finish float64[R] get the times of its part on each rail, -1 where it has
    none. path_rate > 0: the devices have a path past the NICs, for which column 0 then stands.
    A part is set up while the channel still carries the part before it, and is carried as soon as
    both are over. So free float64[D, D, R] is when a set-up that ends with the channel's last part
    would begin: the earliest start of its next part. It is advanced. The function takes scalars
    instead of Tables, because passing Tables costs more than the work done here.
    """
    rails = channels.shape[2]
    for r in range(rails):
        part_start[r] = -1.0
        part_finish[r] = -1.0
    if path_rate > 0.0:
        part_start[0] = max(queued, free[a, b, 0]) if paths_queue else queued
        part_finish[0] = part_start[0] + path_setup + bits / path_rate
        free[a, b, 0] = part_finish[0] - path_setup
        return float(part_finish[0])
    total, fastest, used = 0.0, 0, 0
    for r in range(rails):
        total += channels[a, b, r]
        if channels[a, b, r] > 0.0:
            used += 1
        if channels[a, b, r] > channels[a, b, fastest]:
            fastest = r
    if total <= 0.0:
        return np.inf
    if bits < _CUT_BITS:
        part_start[fastest] = max(queued, free[a, b, fastest])
        took = setup_seconds + bits / channels[a, b, fastest]
        part_finish[fastest] = part_start[fastest] + took
        free[a, b, fastest] = part_finish[fastest] - setup_seconds
        return float(part_finish[fastest])
    # Where parts are in proportion to the rates, each takes as long as the whole at their sum.
    took = setup_seconds + bits / total
    arrival = 0.0
    for r in range(rails):
        if channels[a, b, r] > 0.0:
            if cuts_equally:
                took = setup_seconds + bits / used / channels[a, b, r]
            part_start[r] = max(queued, free[a, b, r])
            part_finish[r] = part_start[r] + took
            free[a, b, r] = part_finish[r] - setup_seconds
            arrival = max(arrival, part_finish[r])
    return arrival


@compiled
def rates_by_volume(tables: Tables, traffic: FloatArray) -> FloatArray:
    """float64[S, S, R]: admissible rates for traffic float64[D, D], by a rule instead of a program.

    Each pair that talks, and its reverse direction, gets the least rate. What is left of every
    group is split in proportion to the square root of the pairs' volumes, which is the optimum for
    transfers that follow each other on one path. A second round spends what the limits of other
    groups left over. Where messages are cut equally, each rail that serves a pair gets the rate of
    the slowest of them.
    """
    servers, rails = tables.nic_rates.shape
    capacity, groups = tables.limit_capacity, tables.limit_groups
    of_each = groups.shape[3]
    weight = np.zeros((servers, servers))
    for a in range(len(tables.server)):
        for b in range(len(tables.server)):
            if tables.server[a] != tables.server[b]:
                weight[tables.server[a], tables.server[b]] += traffic[a, b]
    active = np.zeros((servers, servers), dtype=np.bool_)
    for s in range(servers):
        for t in range(servers):
            active[s, t] = weight[s, t] > 0.0 or weight[t, s] > 0.0
    for s in range(servers):
        for t in range(servers):
            weight[s, t] = np.sqrt(weight[s, t])
    rates = np.zeros((servers, servers, rails))
    left, total = np.empty(capacity.shape[1]), np.empty(capacity.shape[1])
    for r in range(rails):
        for s in range(servers):
            for t in range(servers):
                if active[s, t]:
                    rates[s, t, r] = tables.least_rates[s, t, r]
        for _ in range(2):
            for g in range(len(left)):
                left[g] = capacity[r, g]
                total[g] = 0.0
            for s in range(servers):
                for t in range(servers):
                    if rates[s, t, r] > 0.0:
                        for j in range(of_each):
                            left[groups[r, s, t, j]] -= rates[s, t, r]
            for s in range(servers):
                for t in range(servers):
                    if weight[s, t] > 0.0 and may_grow(tables, left, r, s, t):
                        for j in range(of_each):
                            total[groups[r, s, t, j]] += weight[s, t]
            for s in range(servers):
                for t in range(servers):
                    if weight[s, t] > 0.0 and may_grow(tables, left, r, s, t):
                        part = np.inf
                        for j in range(of_each):
                            g = groups[r, s, t, j]
                            part = min(part, left[g] / total[g])
                        rates[s, t, r] += weight[s, t] * part
    if tables.cuts_equally:
        level_rails(rates)
    return rates


@compiled
def may_grow(tables: Tables, left: FloatArray, r: int, s: int, t: int) -> bool:
    """Whether this rail serves a pair of servers and every group of theirs has something left."""
    if tables.worthwhile[s, t, r] <= 0.0:
        return False
    for j in range(tables.limit_groups.shape[3]):
        if left[tables.limit_groups[r, s, t, j]] <= 0.0:
            return False
    return True


@compiled
def level_rails(rates: FloatArray) -> None:
    """Lowers each pair's rates float64[S, S, R] in place to that of its slowest rail in use."""
    for s in range(rates.shape[0]):
        for t in range(rates.shape[1]):
            slowest = np.inf
            for r in range(rates.shape[2]):
                if rates[s, t, r] > 0.0:
                    slowest = min(slowest, rates[s, t, r])
            for r in range(rates.shape[2]):
                if rates[s, t, r] > 0.0:
                    rates[s, t, r] = slowest
