"""What a sharing makes of a NIC: which queues carry the job, how fast, and to which servers.

strict, even  one queue per destination; its rate is the pair's, and the cap
guarantee     one queue per destination; the pair's rate is its minimum, and its cap is so fixed
              that no receiver can be oversubscribed, however much the senders borrow
job           one queue for the whole job: the floor is its minimum, the whole NIC its cap
unshaped      none

Rates are payload bits per second. What the job is not promised belongs to everything else: a
neighbour keeps it when the job borrows.
"""

from __future__ import annotations

from dataclasses import dataclass

from placewire.agent.contract.entries import FIRST_PAIR_QUEUE
from placewire.controller.compile.units import wire_rate
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.check.recompute.network import ceilings, usable_rates
from placewire.optimizer.cluster_plan.payload import (
    ACKNOWLEDGEMENT_FRACTION,
    DEFAULT_FRACTION,
    payload_capacity,
    payload_fraction,
)
from placewire.optimizer.cluster_plan.section import PlanNic

# Under `job` all destinations share one queue per NIC.
JOB_QUEUE = FIRST_PAIR_QUEUE


@dataclass(frozen=True)
class JobQueue:
    """One queue of the job on one NIC of `source`. minimum and maximum: payload bits per second;
    destinations: the servers that it leads to."""

    source: str
    rail: str
    queue_id: int
    minimum: float
    maximum: float
    destinations: tuple[str, ...]
    purpose: str


def job_queues(plan: Plan, allocation: Allocation) -> tuple[JobQueue, ...]:
    """Of all servers: by server, rail and destination, in plan order."""
    if allocation.sharing == "unshaped":
        return ()
    if allocation.sharing == "job":
        return _queue_per_nic(plan, allocation)
    return _queue_per_pair(plan, allocation)


def pair_queue(plan: Plan, destination: str) -> int:
    """The queue that a destination has on every NIC: stable while the plan's servers are."""
    names = [server.name for server in plan.cluster.servers]
    return FIRST_PAIR_QUEUE + names.index(destination)


def _queue_per_pair(plan: Plan, allocation: Allocation) -> tuple[JobQueue, ...]:
    highest = ceilings(allocation) if allocation.sharing == "guarantee" else {}
    return tuple(
        JobQueue(
            source=source,
            rail=rail,
            queue_id=pair_queue(plan, destination),
            minimum=rate,
            maximum=highest.get((source, destination, rail), rate),
            destinations=(destination,),
            purpose=f"to {destination}",
        )
        for source, destination, rail, rate in allocation.rates_bits_per_second
        if rate > 0
    )


def _queue_per_nic(plan: Plan, allocation: Allocation) -> tuple[JobQueue, ...]:
    """Also where a server only receives: its acknowledgements must not wait for a neighbour."""
    sent = allocation.talks
    talks = sent | {(destination, source, rail) for source, destination, rail in sent}
    found = []
    for server in plan.cluster.servers:
        for nic in server.nics:
            peers = tuple(
                peer.name
                for peer in plan.cluster.servers
                if (server.name, peer.name, nic.rail) in talks
            )
            if peers:
                found.append(
                    JobQueue(
                        source=server.name,
                        rail=nic.rail,
                        queue_id=JOB_QUEUE,
                        minimum=allocation.entitled
                        * payload_capacity(nic.rate_bits_per_second, nic.mtu_bytes),
                        maximum=nic.rate_bits_per_second * payload_fraction(nic.mtu_bytes),
                        destinations=peers,
                        purpose="the job",
                    )
                )
    return tuple(found)


def everything_else(allocation: Allocation, server: str, nic: PlanNic) -> int:
    """Wire bits per second that queue 0 is promised: all that the job does not count on."""
    whole = nic.rate_bits_per_second
    counted_on = usable_rates(allocation)[server, nic.rail]
    if allocation.sharing == "job":
        counted_on = allocation.entitled * payload_capacity(whole, nic.mtu_bytes)
    left = whole * (1 - ACKNOWLEDGEMENT_FRACTION) - wire_rate(counted_on, nic.mtu_bytes)
    return int(max(whole * DEFAULT_FRACTION, left))
