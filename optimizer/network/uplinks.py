"""Which uplinks of pods a transfer passes, and promises that fit into them.

An uplink is not shaped: a promise over it holds because all senders keep to theirs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.network.sharing import PromisedRate

# Rates that were decided within an uplink may exceed it by rounding.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, order=True)
class Crossing:
    """A pod's uplink on one rail, in one direction."""

    pod: str
    direction: Literal["out of", "into"]
    rail: str


class Uplinks:
    def __init__(self, cluster: Cluster) -> None:
        self._pod = {server: pod.name for pod in cluster.pods for server in pod.servers}
        self._rate = {
            (pod.name, uplink.rail): uplink.rate_bits_per_second
            for pod in cluster.pods
            for uplink in pod.uplinks
        }

    def passed(self, source: str, destination: str, rail: str) -> tuple[Crossing, ...]:
        """Those of a transfer between two servers; () within a pod, and where there are none."""
        out, into = self._pod.get(source), self._pod.get(destination)
        if out is None or into is None or out == into:
            return ()
        return Crossing(out, "out of", rail), Crossing(into, "into", rail)

    def rate(self, crossing: Crossing) -> float:
        """Payload bits per second."""
        return self._rate.get((crossing.pod, crossing.rail), 0.0)


def within_uplinks(cluster: Cluster, promised: Sequence[PromisedRate]) -> Iterator[PromisedRate]:
    """The promises, lowered where together they exceed an uplink, in proportion.

    Senders are paced to their promises where what their queues let through could exceed an uplink:
    no queue divides what arrives there. One that sends alone over it may take all of it.
    """
    uplinks, nics = Uplinks(cluster), _nic_rates(cluster)
    total, most = defaultdict[Crossing, float](float), defaultdict[Crossing, float](float)
    senders = Counter[Crossing]()
    passed = [uplinks.passed(p.queue.source, p.destination, p.queue.rail) for p in promised]
    for one, some in zip(promised, passed, strict=True):
        maximum = one.queue.maximum
        for crossing in some:
            total[crossing] += one.at_least
            most[crossing] += nics[one.queue.source, one.queue.rail] if maximum is None else maximum
            senders[crossing] += 1
    for one, some in zip(promised, passed, strict=True):
        room = min((uplinks.rate(crossing) / total[crossing] for crossing in some), default=1.0)
        meets_others = any(
            senders[crossing] > 1 and most[crossing] > uplinks.rate(crossing) * _ROUNDING
            for crossing in some
        )
        if room * _ROUNDING < 1:
            yield replace(one, at_least=one.at_least * room, paced=True)
        elif meets_others:
            yield replace(one, paced=True)
        else:
            yield one


def _nic_rates(cluster: Cluster) -> dict[tuple[str, str], float]:
    """Payload bits per second of each (server, rail)."""
    return {
        (server.name, nic.rail): nic.rate_bits_per_second
        for server in cluster.servers
        for nic in server.nics
    }
