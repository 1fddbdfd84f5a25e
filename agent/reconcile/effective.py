"""Queues as they were asked for against the classes that the kernel has. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from placewire.agent.contract.entries import Queue
from placewire.agent.contract.state import DesiredState, EffectiveQueue, ObservedState

# How far a class of the kernel may be from what was asked: tc counts in whole ticks and bytes.
RATE_TOLERANCE = 0.01
# Open vSwitch raises a class's rate to this, whatever was asked.
LEAST_CLASS_BITS_PER_SECOND = 12_000


class Fault(NamedTuple):
    """A queue whose class in the kernel is missing or differs, on which NIC and in words."""

    nic: str
    sentence: str


def ineffective_queues(desired: DesiredState | None, observed: ObservedState) -> tuple[str, ...]:
    """Queues whose class in the kernel is missing or differs, one sentence each."""
    found = faults(desired.queues if desired else (), observed.effective_queues)
    return tuple(fault.sentence for fault in found)


def drifted_nics(queues: Iterable[Queue], classes: Iterable[EffectiveQueue]) -> frozenset[str]:
    """NICs with a class in the kernel that is missing or is not as one of these queues."""
    return frozenset(fault.nic for fault in faults(queues, classes))


def faults(queues: Iterable[Queue], classes: Iterable[EffectiveQueue]) -> tuple[Fault, ...]:
    by_id = {(c.nic, c.queue_id): c for c in classes}
    found = []
    for queue in queues:
        actual = by_id.get((queue.nic, queue.queue_id))
        said = [f"{queue.key}: the kernel has no class for it"]
        if actual is not None:
            said = _differences(queue, actual)
        found += [Fault(queue.nic, sentence) for sentence in said]
    return tuple(found)


def _differences(queue: Queue, found: EffectiveQueue) -> list[str]:
    asked_bytes = queue.burst_bits // 8
    # Raised by Open vSwitch, or not yet, where the NIC's MTU was raised since.
    most_bytes = max(asked_bytes, found.least_burst_bytes)
    burst_bytes = min(max(asked_bytes, found.burst_bytes), most_bytes)
    minimum = max(queue.min_bits_per_second, LEAST_CLASS_BITS_PER_SECOND)
    pairs = (
        ("rate", minimum, found.min_bits_per_second),
        ("ceil", max(queue.max_bits_per_second, minimum), found.max_bits_per_second),
        ("burst", burst_bytes, found.burst_bytes),
    )
    return [
        f"{queue.key}: {what} is {actual} in the kernel, wanted {wanted}"
        for what, wanted, actual in pairs
        if abs(actual - wanted) > max(RATE_TOLERANCE * wanted, 8)
    ]
