"""Sharing `job`: one queue for the whole job on each NIC, and no rates of pairs.

Each sender serves its most urgent message first, which is the one that the longest remaining path
waits for; receivers share fairly between senders. What was handed over of other messages still
leaves, before it or beside it (`optimizer/chunks.py`). What a sender cannot use for a busy receiver
goes to its next most urgent message for another receiver. Every NIC that sends or receives has a
queue for the job, from the job's floor up to the whole NIC.

Promised is, from every NIC that sends to one of its destinations, at least a fair share of the
floors. The destinations are chosen so that as few senders as possible share a receiver. Senders
that must share one are paced to their shares, because no queue divides what arrives: two that send
as fast as they can get what TCP gives them, and their full queue holds up the acknowledgements of
what the receiver sends.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.sharing import (
    Discipline,
    JobQueue,
    PromisedRate,
    SharingPolicy,
    arriving,
)

Key = TypeVar("Key", bound=Hashable)


class Job(SharingPolicy):
    name: ClassVar[SharingName] = "job"
    discipline = Discipline.MOST_URGENT
    sends_most_urgent_first = True
    why_this_rate = "no rate of its own: the most urgent message of a sender goes first"

    def reserved_rates(self, cluster: Cluster, floor: float) -> FloatArray:
        """The floor alone: what others leave is only borrowed, and they may take it back."""
        reserved: FloatArray = floor * cluster.nic_rates
        return reserved

    def queues(self, allocation: Allocation) -> tuple[JobQueue, ...]:
        """A server that only receives has a queue as well: its acknowledgements must not wait for a
        neighbour."""
        sent = allocation.talks
        talks = sent | {(destination, source, rail) for source, destination, rail in sent}
        found = []
        for server in allocation.cluster.servers:
            for nic in server.nics:
                peers = tuple(
                    peer.name
                    for peer in allocation.cluster.servers
                    if (server.name, peer.name, nic.rail) in talks
                )
                if peers:
                    floor = allocation.floor * nic.rate_bits_per_second
                    found.append(JobQueue(server.name, nic.rail, peers, floor, None, True))
        return tuple(found)

    def promises(self, queues: Sequence[JobQueue]) -> tuple[PromisedRate, ...]:
        rails = dict.fromkeys(queue.rail for queue in queues)
        promised = [
            one
            for rail in rails
            for one in _on_a_rail({q.source: q for q in queues if q.rail == rail})
        ]
        count = arriving(promised)
        return tuple(
            replace(one, paced=count[one.queue.rail, one.destination] > 1) for one in promised
        )


def _on_a_rail(queue_of: Mapping[str, JobQueue]) -> list[PromisedRate]:
    """The promises of one rail, from each of its senders to one destination. A receiver divides its
    floor between the senders that share it, to each at most the sender's floor."""
    receiver = one_to_one({name: queue.destinations for name, queue in queue_of.items()})
    found = []
    for destination in dict.fromkeys(receiver.values()):
        floors = {s: queue_of[s].minimum for s, t in receiver.items() if t == destination}
        shares = equal_shares(queue_of[destination].minimum, floors)
        found += [PromisedRate(queue_of[s], destination, share) for s, share in shares.items()]
    return found


def one_to_one(choices: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Chooses each source's destination among its choices: as many different destinations as there
    can be (a bipartite matching), and for the other sources the choice at which fewest arrive."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    names = list(dict.fromkeys(itertools.chain.from_iterable(choices.values())))
    number = {destination: k for k, destination in enumerate(names)}
    counts = [len(destinations) for destinations in choices.values()]
    chosen = [number[one] for destinations in choices.values() for one in destinations]
    table = (np.ones(len(chosen), dtype=np.int8), chosen, np.cumsum([0, *counts]))
    matched = maximum_bipartite_matching(
        csr_array(table, shape=(len(choices), len(names))), perm_type="column"
    )
    found = {s: names[k] for s, k in zip(choices, matched.tolist(), strict=True) if k >= 0}
    load = Counter(found.values())
    for source, destinations in choices.items():
        if source not in found:
            found[source] = min(destinations, key=load.__getitem__)
            load[found[source]] += 1
    return {source: found[source] for source in choices}


def equal_shares(amount: float, room: Mapping[Key, float]) -> dict[Key, float]:
    """Divides the amount equally, but gives no key more than its room."""
    shares: dict[Key, float] = {}
    left = max(amount, 0.0)
    for count, key in zip(range(len(room), 0, -1), sorted(room, key=room.__getitem__), strict=True):
        shares[key] = max(0.0, min(room[key], left / count))
        left -= shares[key]
    return shares
