"""Compares what each rail carried with its share: whether a script uses every NIC. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.controller.compile.scripts import planned_shares
from placewire.controller.plan.plan import Plan
from placewire.controller.records.report import RailRow
from placewire.job.contract.specification import Carried, RankEvent

# A NIC is reported where it carried so much less or more than its share, once this many bytes were
# sent. Connecting also sends a little over a rail that has no share.
TOLERANCE = 0.10
ENOUGH_BYTES = 8 << 20
LEAST = 0.02

REMEDY = (
    "gloo gives each collective to one rail: a script whose steps have few collectives, of unequal "
    "size, uses rails unequally (with DDP, a smaller bucket_cap_mb makes more of them); with NCCL "
    "look at NCCL_DEBUG=INFO; what a script sets itself (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) "
    "wins"
)
NOTHING_SENT = (
    "no server sent anything to another one: the script ended before it trained (it may have said "
    "why above), or it makes no process group of all ranks (torch.distributed.init_process_group), "
    "so that each server trained by itself"
)


def rail_rows(plan: Plan, events: Sequence[RankEvent]) -> tuple[RailRow, ...]:
    """Returns rows by server and rail, from the last report of each server."""
    shares = planned_shares(plan)
    last = {event.rank: event for event in events if isinstance(event, Carried)}
    rows = []
    for rank, event in sorted(last.items()):
        server = plan.cluster.servers[rank]
        nics = {nic.rail: nic.name for nic in server.nics}
        total = sum(event.sent_bytes.values())
        for rail, sent in event.sent_bytes.items():
            share = sent / total if total else 0.0
            off = abs(share - shares[rail])
            rows.append(
                RailRow(
                    server=server.name,
                    rail=rail,
                    nic=nics[rail],
                    sent_bytes=sent,
                    share=share,
                    planned_share=shares[rail],
                    within_tolerance=off <= max(TOLERANCE * shares[rail], LEAST)
                    if total >= ENOUGH_BYTES or not (sent or shares[rail])
                    else None,
                )
            )
    return tuple(rows)


def complaints(rows: Sequence[RailRow]) -> list[str]:
    return [
        f"{row.server}: {row.nic} carries {row.share:.0%} of what is sent, its share is "
        f"{row.planned_share:.0%}"
        for row in rows
        if row.within_tolerance is False
    ]
