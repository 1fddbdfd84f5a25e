"""Says what a placement sends over the uplinks of pods, and how long the step waits for that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.device_names import server_of
from placewire.optimizer.explain.critical_path import Segment
from placewire.optimizer.network.uplinks import Crossing, Uplinks
from placewire.optimizer.placement import Placement
from placewire.optimizer.quantities import format_bits_per_second, format_bytes

_MOST_SHOWN = 12


@dataclass(frozen=True)
class UplinkUse:
    """One direction of a pod's uplink on one rail.

    bytes: of a step; part_of_step: how much of the step they take at the uplink's whole rate.
    part_promised: what decided rates take of it; None where rates are not decided.
    critical_seconds: how long the step waits for messages that are sent over it, at least in part.
    """

    pod: str
    direction: str
    rail: str
    rate_bits_per_second: float
    bytes: float
    part_of_step: float
    part_promised: float | None
    critical_seconds: float


def uplink_waits(cluster: Cluster, path: Sequence[Segment]) -> dict[Crossing, float]:
    """How long a step with this critical path waits for what is sent over each uplink, in seconds.
    A message that is cut over several rails counts on each."""
    uplinks, server = Uplinks(cluster), [server_of(name) for name in cluster.device_names]
    waits = defaultdict[Crossing, float](float)
    for segment in path:
        pair = server[segment.source], server[segment.device]
        # A segment past the NICs has no rails.
        taken = [r for r, share in zip(cluster.rails, segment.rails, strict=False) if share > 0]
        for rail in taken:
            for crossing in uplinks.passed(*pair, rail):
                waits[crossing] += segment.seconds
    return waits


def uplinks_used(
    placement: Placement, critical_seconds: Mapping[Crossing, float]
) -> tuple[UplinkUse, ...]:
    """Those that carry something, the busiest first; () without pods. critical_seconds: see
    `uplink_waits`."""
    uplinks = Uplinks(placement.cluster)
    carried, promised = defaultdict[Crossing, float](float), defaultdict[Crossing, float](float)
    for message in placement.messages:
        pair = server_of(message.source), server_of(message.destination)
        for rail, share in message.rails.items():
            for crossing in uplinks.passed(*pair, rail):
                carried[crossing] += share * message.bytes
    for source, destination, rail, rate in placement.rates_bits_per_second:
        for crossing in uplinks.passed(source, destination, rail):
            promised[crossing] += rate
    found = []
    for crossing, size in sorted(carried.items()):
        rate, step = uplinks.rate(crossing), placement.step_seconds
        if size > 0 and rate > 0 and step > 0:
            found.append(
                UplinkUse(
                    pod=crossing.pod,
                    direction=crossing.direction,
                    rail=crossing.rail,
                    rate_bits_per_second=rate,
                    bytes=size,
                    part_of_step=size * 8 / rate / step,
                    part_promised=promised[crossing] / rate if promised else None,
                    critical_seconds=critical_seconds.get(crossing, 0.0),
                )
            )
    return tuple(sorted(found, key=lambda use: -use.part_of_step))


def uplink_words(placement: Placement, used: Sequence[UplinkUse] | None = None) -> list[str]:
    """A sentence for each of the busiest uplinks; none without pods. used: where it is known how
    long the step waits for them."""
    shown = uplinks_used(placement, {}) if used is None else used
    said = [_words(use, placement.step_seconds) for use in shown[:_MOST_SHOWN]]
    if placement.cluster.pods and placement.server_pairs and not shown:
        said.append("nothing is sent over the uplinks of pods")
    if len(shown) > _MOST_SHOWN:
        said.append(f"… and {len(shown) - _MOST_SHOWN} more uplinks")
    return said


def _words(use: UplinkUse, step_seconds: float) -> str:
    rate = format_bits_per_second(use.rate_bits_per_second)
    said = (
        f"uplink {use.direction} pod {use.pod} on rail {use.rail}: {format_bytes(use.bytes)} take "
        f"{use.part_of_step:.0%} of the step at its {rate}"
    )
    if use.part_promised is not None:
        said += f", of which pairs have {use.part_promised:.0%}"
    if use.critical_seconds > 0:
        part = use.critical_seconds / step_seconds
        said += f"; the step waits {part:.1%} of its time for messages over it"
    return said
