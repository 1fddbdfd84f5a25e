"""The queues of every NIC that carry the job: what a sharing asks for, with the ids that they get.

Rates are payload bits per second. What the job is not promised belongs to everything else: a
neighbour keeps it when the job borrows.
"""

from __future__ import annotations

from dataclasses import dataclass

from placewire.agent.contract.entries import FIRST_PAIR_QUEUE
from placewire.controller.compile.units import wire_rate
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.cluster_plan.payload import (
    ACKNOWLEDGEMENT_FRACTION,
    DEFAULT_FRACTION,
    payload_fraction,
)
from placewire.optimizer.cluster_plan.section import PlanNic
from placewire.optimizer.network.sharing import JobQueue
from placewire.optimizer.network.sharings import SHARINGS

# A queue that carries the job to whatever server.
JOB_QUEUE = FIRST_PAIR_QUEUE


@dataclass(frozen=True)
class NicQueue:
    """One queue of the job as it is on its NIC. maximum: payload bits per second."""

    queue: JobQueue
    queue_id: int
    maximum: float

    @property
    def purpose(self) -> str:
        return "the job" if self.queue.for_the_job else f"to {self.queue.destinations[0]}"


def job_queues(plan: Plan, allocation: Allocation) -> tuple[NicQueue, ...]:
    """Of all servers: by server, rail and destination, in plan order."""
    nics = {(server.name, nic.rail): nic for server in plan.cluster.servers for nic in server.nics}
    found = []
    for queue in SHARINGS[allocation.sharing].queues(allocation):
        nic = nics[queue.source, queue.rail]
        whole = nic.rate_bits_per_second * payload_fraction(nic.mtu_bytes)
        number = JOB_QUEUE if queue.for_the_job else pair_queue(plan, queue.destinations[0])
        found.append(NicQueue(queue, number, whole if queue.maximum is None else queue.maximum))
    return tuple(found)


def pair_queue(plan: Plan, destination: str) -> int:
    """The queue that a destination has on every NIC: stable while the plan's servers are."""
    names = [server.name for server in plan.cluster.servers]
    return FIRST_PAIR_QUEUE + names.index(destination)


def everything_else(allocation: Allocation, server: str, nic: PlanNic) -> int:
    """Wire bits per second that queue 0 is promised: all that the job does not count on."""
    cluster, whole = allocation.cluster, nic.rate_bits_per_second
    reserved = SHARINGS[allocation.sharing].reserved_rates(cluster, allocation.floor)
    names = [one.name for one in cluster.servers]
    job = float(reserved[names.index(server), cluster.rails.index(nic.rail)])
    left = whole * (1 - ACKNOWLEDGEMENT_FRACTION) - wire_rate(job, nic.mtu_bytes)
    return int(max(whole * DEFAULT_FRACTION, left))
