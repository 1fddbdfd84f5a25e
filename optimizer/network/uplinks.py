"""Which uplinks of pods a transfer passes, and promises that fit into them.

An uplink is not shaped: a promise over it holds because all senders keep to theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.network.sharing import PromisedRate


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
    """The promises, lowered where together they exceed an uplink, in proportion. Senders of a
    lowered promise are paced to it: no queue divides what arrives at an uplink."""
    uplinks, total = Uplinks(cluster), defaultdict[Crossing, float](float)
    passed = [uplinks.passed(p.queue.source, p.destination, p.queue.rail) for p in promised]
    for one, some in zip(promised, passed, strict=True):
        for crossing in some:
            total[crossing] += one.at_least
    for one, some in zip(promised, passed, strict=True):
        room = min((uplinks.rate(crossing) / total[crossing] for crossing in some), default=1.0)
        # Rates that were decided within an uplink may exceed it by rounding.
        lowered = room < 1 - 1e-9
        yield replace(one, at_least=one.at_least * room, paced=True) if lowered else one
