"""The step A of a placement by the model that the thesis and QuickP share.

A transfer takes as long as if it were alone, and each device runs its operators in the sort TP:
(3.4)-(3.6), (3.9). Operators without a time delay no other on their device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.network import Network

Time = TypeVar("Time", int, float)


def own_step(
    instance: Instance, network: Network, device: IntArray, rates: FloatArray | None
) -> float:
    """A in seconds. device int64[n]; rates float64[k]: the decided b of network.server_pairs in
    bits per second, None where none is decided."""
    took = instance.seconds[np.arange(instance.operators), device]
    late = transfer_seconds(instance, network, device, rates)
    starts = earliest_starts(instance, device, took.tolist(), late.tolist())
    return float((np.array(starts, dtype=np.float64) + took).max(initial=0.0))


def transfer_seconds(
    instance: Instance, network: Network, device: IntArray, rates: FloatArray | None
) -> FloatArray:
    """float64[edges]: what the transfer of each edge takes, 0 where nothing travels."""
    i, _, bits = instance.edges
    late = np.zeros(len(i))
    moves, pair = travelling(instance, network, device)
    seconds = network.latency[pair] + bits[moves] * network.per_bit[pair]
    if rates is not None:
        decided = network.decided[pair]
        seconds[decided >= 0] += bits[moves][decided >= 0] / rates[decided[decided >= 0]]
    late[moves] = seconds
    return late


def travelling(instance: Instance, network: Network, device: IntArray) -> tuple[IntArray, IntArray]:
    """(the edges whose tensors travel between devices, the pair of the network that each takes)"""
    i, j, bits = instance.edges
    pair_of = np.full((instance.devices, instance.devices), -1, dtype=np.int64)
    pair_of[network.source, network.target] = np.arange(len(network.source))
    moves = np.flatnonzero((device[i] != device[j]) & (bits > 0))
    return moves, pair_of[device[i[moves]], device[j[moves]]]


def used_pairs(instance: Instance, network: Network, device: IntArray) -> BoolArray:
    """bool[k]: whether a tensor travels between the two, of network.server_pairs."""
    used = np.zeros(len(network.server_pairs), dtype=bool)
    decided = network.decided[travelling(instance, network, device)[1]]
    used[decided[decided >= 0]] = True
    return used


def earliest_starts(
    instance: Instance, device: IntArray, took: Sequence[Time], late: Sequence[Time]
) -> list[Time]:
    """The start of each operator. took: of each operator; late: of each edge's transfer."""
    i, j, _ = instance.edges
    arriving: list[list[tuple[int, Time]]] = [[] for _ in took]
    for source, target, after in zip(i.tolist(), j.tolist(), late, strict=True):
        arriving[target].append((source, after))
    costly = set(instance.sorted_costly.tolist())
    where = device.tolist()
    nothing: Time = took[0] * 0 if took else 0
    start, free = [nothing] * len(took), [nothing] * instance.devices
    for k in instance.order.tolist():
        ready = [start[source] + took[source] + after for source, after in arriving[k]]
        if k in costly:
            ready.append(free[where[k]])
        start[k] = max(ready, default=nothing)
        if k in costly:
            free[where[k]] = start[k] + took[k]
    return start
