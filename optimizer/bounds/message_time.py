"""Counts the time of devices and NICs that a tensor takes on its way from one device to another.

A tensor that leaves its producer's device goes alone, which occupies the device for the time of a
message after the producer, or in a bundle, which copies it after the producer (`occupation` and
`bundles` of the simulation) and then is a message as well. So it takes at least the shorter of the
two, and its bytes' time, of that device before it travels; and each message takes its time of the
sender, and of the receiver after it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray, row_starts
from placewire.optimizer.bounds.exact_rates import servers_are_devices
from placewire.optimizer.bounds.relaxation import crossing_seconds, nic_capacities
from placewire.optimizer.problem import Problem


@dataclass(frozen=True)
class Messages:
    """The tensors with bytes that some connection carries: producer int64[m]; their readers are
    reader[start[e]:start[e + 1]]. Seconds, float64[m]: crossing, least from the producer's end to
    the arrival; sending, least that it takes of its sender; message, least that a message with it
    takes of its sender, and of its receiver; wire, least that all NICs of a server are busy with
    it, 0 where they need not carry it. latency: seconds before the first byte leaves."""

    producer: IntArray
    start: IntArray
    reader: IntArray
    crossing: FloatArray
    sending: FloatArray
    message: FloatArray
    wire: FloatArray
    latency: float


def messages_of(problem: Problem) -> Messages:
    graph, each = problem.graph, problem.message_seconds
    size = graph.tensor_bytes.astype(np.float64)
    crossing = crossing_seconds(problem)
    sent = (size > 0) & np.isfinite(crossing)
    number = np.cumsum(sent) - 1
    _, reader, tensor = graph.edges
    row = sent[tensor]
    bytes_take = problem.message_seconds_per_byte * size
    copied = float(problem.copy_seconds_per_byte.min()) * size
    return Messages(
        producer=graph.tensor_producer[sent],
        start=row_starts(number[tensor[row]], int(sent.sum())),
        reader=np.ascontiguousarray(reader[row]),
        crossing=crossing[sent],
        sending=(bytes_take + np.minimum(each, copied))[sent],
        message=(bytes_take + each)[sent],
        wire=_wire_seconds(problem)[sent],
        latency=problem.cluster.setup_latency_seconds,
    )


def no_messages() -> Messages:
    none, nothing = np.zeros(0), np.zeros(0, dtype=np.int64)
    start = np.zeros(1, dtype=np.int64)
    return Messages(nothing, start, nothing, none, none, none, none, latency=0.0)


def _wire_seconds(problem: Problem) -> FloatArray:
    """float64[m]: of each tensor at the fastest server, where devices share no NIC and no path
    leads past them, and transfers meet there."""
    size = problem.graph.tensor_bytes.astype(np.float64)
    rate = float(nic_capacities(problem).sum(axis=1).max(initial=0.0))
    if problem.model != "contended" or not servers_are_devices(problem) or rate <= 0.0:
        return np.zeros(len(size))
    return size * 8.0 / rate
