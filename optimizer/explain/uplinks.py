"""Says what a placement sends over the uplinks of pods, and which of them limit it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.uplinks import Crossing, Uplinks
from placewire.optimizer.placement import Placement
from placewire.optimizer.quantities import format_bits_per_second, format_bytes

_MOST_SHOWN = 12
# An uplink limits a step where it carries something for this part of it, or where decided rates
# take this part of it.
_LIMITS_FROM, _FULL_FROM = 0.5, 0.995


@dataclass(frozen=True)
class UplinkUse:
    """One direction of a pod's uplink on one rail: the bytes of a step, and the part of the step
    that they take at its whole rate. part_promised: what decided rates take of it; None where rates
    are not decided."""

    pod: str
    direction: str
    rail: str
    rate_bits_per_second: float
    bytes: float
    part_of_step: float
    part_promised: float | None

    @property
    def limits(self) -> bool:
        return self.part_of_step >= _LIMITS_FROM or (self.part_promised or 0.0) >= _FULL_FROM


def uplinks_used(placement: Placement) -> tuple[UplinkUse, ...]:
    """Those that carry something, the busiest first; () without pods."""
    uplinks = Uplinks(placement.cluster)
    carried, promised = defaultdict[Crossing, float](float), defaultdict[Crossing, float](float)
    for message in placement.messages:
        ends = server_of(message.source), server_of(message.destination)
        for rail, share in message.rails.items():
            for crossing in uplinks.passed(*ends, rail):
                carried[crossing] += share * message.bytes
    for source, destination, rail, rate in placement.rates_bits_per_second:
        for crossing in uplinks.passed(source, destination, rail):
            promised[crossing] += rate
    found = []
    for crossing, size in sorted(carried.items()):
        rate, step = uplinks.rate(crossing), placement.step_seconds
        if size > 0 and rate > 0 and step > 0:
            part = promised[crossing] / rate if promised else None
            taken = size * 8 / rate / step
            found.append(
                UplinkUse(crossing.pod, crossing.direction, crossing.rail, rate, size, taken, part)
            )
    return tuple(sorted(found, key=lambda use: -use.part_of_step))


def uplink_words(placement: Placement) -> list[str]:
    """A sentence for each of the busiest uplinks."""
    used = uplinks_used(placement)
    said = [_words(use) for use in used[:_MOST_SHOWN]]
    if placement.cluster.pods and placement.server_pairs and not used:
        said.append("nothing is sent over the uplinks of pods")
    if len(used) > _MOST_SHOWN:
        said.append(f"… and {len(used) - _MOST_SHOWN} more uplinks")
    return said


def _words(use: UplinkUse) -> str:
    rate = format_bits_per_second(use.rate_bits_per_second)
    said = (
        f"uplink {use.direction} pod {use.pod} on rail {use.rail}: {format_bytes(use.bytes)} a "
        f"step, {use.part_of_step:.0%} of the step's time at {rate}"
    )
    if use.part_promised is not None:
        said += f"; pairs have {use.part_promised:.0%} of it"
    return f"{said}; it limits the step" if use.limits else said
