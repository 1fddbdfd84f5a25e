"""What ranks sent, beside what their placement has them send. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from placewire.frozen import Frozen
from placewire.job.contract.specification import Finished

if TYPE_CHECKING:
    from placewire.optimizer.placement import Placement


class TrafficRow(Frozen):
    """Payload bytes of one step from one device to another on one rail."""

    source: str
    destination: str
    rail: str
    planned_bytes: float
    sent_bytes: float


def traffic_rows(
    placement: Placement,
    finished: Iterable[Finished],
    steps: int,
    buckets: Sequence[tuple[Placement, float]] = (),
) -> tuple[TrafficRow, ...]:
    """Returns a row for every (source, destination, rail) that has planned or sent bytes. buckets:
    where there are several, the placement of each, and the part of the steps that it had."""
    devices = frozenset(placement.devices_used)
    planned: dict[tuple[str, str, str], float] = defaultdict(float)
    for one, part in buckets or [(placement, 1.0)]:
        for message in one.messages if part else ():
            for rail, share in (message.rails or {"": 1.0}).items():
                planned[message.source, message.destination, rail] += message.bytes * share * part
    sent: dict[tuple[str, str, str], float] = defaultdict(float)
    for event in finished:
        source = placement.devices_used[event.rank]
        for row in event.traffic:
            if row.destination not in devices:
                continue  # The rank's model may say anything.
            sent[source, row.destination, row.rail] += row.bytes / steps
    return tuple(
        TrafficRow(
            source=s,
            destination=d,
            rail=r,
            planned_bytes=planned[s, d, r],
            sent_bytes=sent[s, d, r],
        )
        for s, d, r in sorted(planned.keys() | sent.keys())
    )
