"""The queues that carry the job on every NIC: those that a sharing asks for, with their ids.

Rates are payload bits per second. What the job is not promised is promised to everything else, so
that a neighbour keeps it even when the job borrows.
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

# The queue that carries the job to all servers, where a sharing has only one.
JOB_QUEUE = FIRST_PAIR_QUEUE


@dataclass(frozen=True)
class NicQueue:
    """A queue of the job on its NIC. maximum: payload bits per second."""

    queue: JobQueue
    queue_id: int
    maximum: float

    @property
    def purpose(self) -> str:
        return "the job" if self.queue.for_the_job else f"to {self.queue.destinations[0]}"


def job_queues(plan: Plan, allocation: Allocation) -> tuple[NicQueue, ...]:
    """The job's queues on all servers, in the plan's order of server, rail and destination."""
    servers = plan.cluster.servers
    nics = {(server.name, nic.rail): nic for server in servers for nic in server.nics}
    # A destination has the same queue on every NIC, which changes only with the plan's servers.
    numbers = {server.name: FIRST_PAIR_QUEUE + index for index, server in enumerate(servers)}
    found = []
    for queue in SHARINGS[allocation.sharing].queues(allocation):
        nic = nics[queue.source, queue.rail]
        whole = nic.rate_bits_per_second * payload_fraction(nic.mtu_bytes)
        number = JOB_QUEUE if queue.for_the_job else numbers[queue.destinations[0]]
        found.append(NicQueue(queue, number, whole if queue.maximum is None else queue.maximum))
    return tuple(found)


def everything_else(allocation: Allocation, server: str, nic: PlanNic) -> int:
    """What queue 0 is promised: all that the job does not count on, in wire bits per second."""
    cluster, whole = allocation.cluster, nic.rate_bits_per_second
    reserved = SHARINGS[allocation.sharing].reserved_rates(cluster, allocation.floor)
    names = [one.name for one in cluster.servers]
    job = float(reserved[names.index(server), cluster.rails.index(nic.rail)])
    left = whole * (1 - ACKNOWLEDGEMENT_FRACTION) - wire_rate(job, nic.mtu_bytes)
    return int(max(whole * DEFAULT_FRACTION, left))
