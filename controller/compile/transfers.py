"""Turns the promised rates into the transfers that measure them, all at once."""

from __future__ import annotations

from dataclasses import dataclass

from placewire.agent.contract.measurement import Transfer
from placewire.controller.compile.queues import job_queues
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.network.uplinks import within_uplinks

# A server needs as many ports as transfers come into it: 252 on 64 servers with four NICs each. No
# well-known service has one of these up to 26999; from 27000 on licence servers are, and from 32768
# on the kernel may have given a port to somebody's connection.
FIRST_TCP_PORT = 26_500


@dataclass(frozen=True)
class Promise:
    """The rate that a transfer must get while all the others run, and the most that it may take
    without taking from others. Rates are payload. queue_id: on the source's NIC."""

    transfer: Transfer
    at_most_bits_per_second: float
    queue_id: int


def promises(plan: Plan, allocation: Allocation) -> tuple[Promise, ...]:
    """The promises of all servers. Transfers into the same server have different TCP ports."""
    queues = {one.queue: one for one in job_queues(plan, allocation)}
    address = {(s.name, n.rail): n.ip for s in plan.cluster.servers for n in s.nics}
    used: dict[str, int] = {}
    found = []
    promised = SHARINGS[allocation.sharing].promises(tuple(queues))
    for one in within_uplinks(allocation.cluster, promised):
        queue, destination = one.queue, one.destination
        port = FIRST_TCP_PORT + used.setdefault(destination, 0)
        used[destination] += 1
        transfer = Transfer(
            source=queue.source,
            destination=destination,
            rail=queue.rail,
            source_address=address[queue.source, queue.rail],
            destination_address=address[destination, queue.rail],
            tcp_port=port,
            promised_bits_per_second=one.at_least,
            paced=one.paced,
        )
        found.append(Promise(transfer, queues[queue].maximum, queues[queue].queue_id))
    return tuple(found)
