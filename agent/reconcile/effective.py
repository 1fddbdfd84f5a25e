"""Compares desired queues with the HTB classes that the kernel really has. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from placewire.agent.contract.entries import LEAST_CLASS_BITS_PER_SECOND, Queue
from placewire.agent.contract.state import DesiredState, EffectiveQueue, ObservedState

# How far a class may be from what was asked: tc counts in whole ticks and bytes.
RATE_TOLERANCE = 0.01


class Fault(NamedTuple):
    """A queue whose class in the kernel is missing or differs. sentence: how."""

    nic: str
    sentence: str


def ineffective_queues(desired: DesiredState | None, observed: ObservedState) -> tuple[str, ...]:
    """One sentence for each way in which a queue's class in the kernel is missing or differs."""
    found = faults(desired.queues if desired else (), observed.effective_queues)
    return tuple(fault.sentence for fault in found)


def drifted_nics(queues: Iterable[Queue], classes: Iterable[EffectiveQueue]) -> frozenset[str]:
    """The NICs of those `queues` whose class is missing or differs."""
    return frozenset(fault.nic for fault in faults(queues, classes))


def faults(queues: Iterable[Queue], classes: Iterable[EffectiveQueue]) -> tuple[Fault, ...]:
    by_id = {(c.nic, c.queue_id): c for c in classes}
    return tuple(
        Fault(queue.nic, f"{queue.key}: {sentence}")
        for queue in queues
        for sentence in _differences(queue, by_id.get((queue.nic, queue.queue_id)))
    )


def _differences(queue: Queue, found: EffectiveQueue | None) -> list[str]:
    if found is None:
        return ["the kernel has no class for it"]
    asked_bytes = queue.burst_bits // 8
    # Open vSwitch raises a small burst, but not at once where the NIC's MTU was raised since: any
    # burst from the one asked for to the raised one is as wanted.
    most_bytes = max(asked_bytes, found.least_burst_bytes)
    burst_bytes = min(max(asked_bytes, found.burst_bytes), most_bytes)
    minimum = max(queue.min_bits_per_second, LEAST_CLASS_BITS_PER_SECOND)
    pairs = (
        ("rate", minimum, found.min_bits_per_second),
        ("ceil", max(queue.max_bits_per_second, minimum), found.max_bits_per_second),
        ("burst", burst_bytes, found.burst_bytes),
    )
    return [
        f"{what} is {actual} in the kernel, wanted {wanted}"
        for what, wanted, actual in pairs
        if abs(actual - wanted) > max(RATE_TOLERANCE * wanted, 8)
    ]
