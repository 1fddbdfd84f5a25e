"""Compares what each rail carried with its share: whether a script uses every NIC. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.controller.compile.scripts import planned_shares
from placewire.controller.plan.plan import Plan
from placewire.controller.records.report import RailRow
from placewire.job.contract.specification import Carried

# A NIC is reported where it carried so much less or more than its share, once this many bytes were
# sent. Connecting also sends a little over a rail that has no share.
TOLERANCE = 0.10
ENOUGH_BYTES = 8 << 20
LEAST = 0.02

REMEDY = (
    "gloo gives a collective that is not cut to one rail, and a send to that of its tag: a script "
    "that mostly sends, or whose steps have few such collectives, of unequal size, uses rails "
    "unequally (with DDP, a smaller bucket_cap_mb makes more of them); with NCCL look at "
    "NCCL_DEBUG=INFO; what a script sets itself (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) wins; "
    "docs/how-to/run-a-script.md has more causes"
)
NEXT_TO_NOTHING = (
    "no server sent more than a few KiB to another one. If the processes were to train together, "
    "the script ended before it trained (it may have said why above), or it made no process group "
    "of all ranks, so that each process trained by itself. On CPUs, Accelerate wants "
    'ACCELERATE_USE_CPU: "true" in job.env or Accelerator(cpu=True), Trainer of transformers '
    "--use_cpu, Lightning num_nodes"
)
# A process group sends more even with a model of two parameters (35 KiB were measured).
_FEW_BYTES = 24 << 10


def rail_rows(plan: Plan, carried: Mapping[int, Carried]) -> tuple[RailRow, ...]:
    """Returns rows by server and rail. carried: by rank, the last report of each server."""
    shares = planned_shares(plan)
    rows = []
    for rank, event in sorted(carried.items()):
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


def trained_together(rows: Sequence[RailRow]) -> bool:
    """Whether servers sent each other more than what looks for neighbours and routes sends."""
    sent: dict[str, int] = {}
    for row in rows:
        sent[row.server] = sent.get(row.server, 0) + row.sent_bytes
    return len(sent) < 2 or max(sent.values()) > _FEW_BYTES


def complaints(rows: Sequence[RailRow]) -> list[str]:
    return [
        f"{row.server}: {row.nic} carries {row.share:.0%} of what is sent, its share is "
        f"{row.planned_share:.0%}"
        for row in rows
        if row.within_tolerance is False
    ]
