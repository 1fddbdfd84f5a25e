"""What the network promised, as transfers to measure, all at once.

strict, even  every pair's rate on every rail, no more and no less
guarantee     at least the pair's minimum, at most what it may borrow to
job           from every NIC that sends, to one of its destinations: at least its fair share of the
              floors, at most the whole NIC. Which destination is so chosen that as few senders as
              can be share a receiver; those that must are paced to their shares, because no queue
              divides what arrives: two that send all they can get what TCP gives them, and their
              full queue holds up the acknowledgements of what the receiver sends
unshaped      nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from placewire.agent.contract.measurement import Transfer
from placewire.controller.compile.queues import JobQueue, job_queues
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.check.recompute.fairness import equal_shares

FIRST_TCP_PORT = 42000


@dataclass(frozen=True)
class Promise:
    """What one transfer must get while all the others run; more than at_most would be another's.

    queue_id: on the source's NIC. Rates are payload.
    """

    transfer: Transfer
    at_most_bits_per_second: float
    queue_id: int


def promises(plan: Plan, allocation: Allocation) -> tuple[Promise, ...]:
    """A TCP port of its own for each transfer into one server."""
    queues = job_queues(plan, allocation)
    if allocation.sharing == "job":
        promised = [row for rail in plan.rails for row in _of_one_job(rail, queues)]
    else:
        promised = [(queue, queue.destinations[0], queue.minimum) for queue in queues]
    address = {(s.name, n.rail): n.ip for s in plan.cluster.servers for n in s.nics}
    arriving = Counter((queue.rail, destination) for queue, destination, _ in promised)
    used: dict[str, int] = {}
    found = []
    for queue, destination, rate in promised:
        port = FIRST_TCP_PORT + used.setdefault(destination, 0)
        used[destination] += 1
        transfer = Transfer(
            source=queue.source,
            destination=destination,
            rail=queue.rail,
            source_address=address[queue.source, queue.rail],
            destination_address=address[destination, queue.rail],
            tcp_port=port,
            promised_bits_per_second=rate,
            paced=allocation.sharing == "job" and arriving[queue.rail, destination] > 1,
        )
        found.append(Promise(transfer, queue.maximum, queue.queue_id))
    return tuple(found)


def _of_one_job(rail: str, queues: Sequence[JobQueue]) -> list[tuple[JobQueue, str, float]]:
    """(queue, destination, promised rate) of each NIC on the rail. A receiver that several senders
    share divides its own floor between them, to each at most the sender's."""
    on_rail = {queue.source: queue for queue in queues if queue.rail == rail}
    receiver = one_to_one({name: queue.destinations for name, queue in on_rail.items()})
    found = []
    for destination in dict.fromkeys(receiver.values()):
        floors = {s: on_rail[s].minimum for s, t in receiver.items() if t == destination}
        shares = equal_shares(on_rail[destination].minimum, floors)
        found += [(on_rail[source], destination, share) for source, share in shares.items()]
    return found


def one_to_one(choices: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Each source's destination, out of its choices: as many different ones as there can be, and
    what remains where fewest are. A bipartite matching by augmenting paths."""
    taken: dict[str, str] = {}

    def place(source: str, tried: set[str]) -> bool:
        for destination in choices[source]:
            if destination in tried:
                continue
            tried.add(destination)
            if destination not in taken or place(taken[destination], tried):
                taken[destination] = source
                return True
        return False

    for source in choices:
        place(source, set())
    found = {source: destination for destination, source in taken.items()}
    for source, destinations in choices.items():
        if source not in found:
            load = list(found.values())
            found[source] = min(destinations, key=load.count)
    return {source: found[source] for source in choices}
