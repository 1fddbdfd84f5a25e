"""Which part leaves next: decisions only, nothing is sent here.

`InOrder`: everything at once, as it comes. gloo's connections keep the order of one pair and rail,
and different pairs share the NIC as TCP does: what `contended` assumes of strict, even, guarantee
and unshaped sharing.

`UrgentFirst`, for `job` sharing: of what waits on a rail the most urgent part leaves first. gloo
and the kernel send what they were given in the order in which they were given it, so they are given
little at a time: WINDOW_CHUNKS per receiving server. What an urgent receiver cannot take shows as a
full window; the NIC's known rate, counted in tokens, says how much is then left for the next most
urgent message to another server.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from placewire.job.messages.cutting import Part, chunk_bytes
from placewire.job.messages.rank_messages import RankMessage
from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.nics import usable_rates
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement

# One chunk is on its way and the next lies ready: a connection never waits for this process.
WINDOW_CHUNKS = 2
# So much later than its NIC alone explains a part shows that its receiver has other things to do.
# Two senders to one receiver take twice as long; processes of a busy machine wake up late.
HELD_UP_TIMES, HELD_UP_SECONDS = 1.25, 0.002


@dataclass(frozen=True, eq=False)
class Waiting:
    """One part of one message; ordered by urgency."""

    message: RankMessage
    part: Part

    @property
    def receiver(self) -> str:
        return self.message.peer_server

    def __lt__(self, other: Waiting) -> bool:
        return self._urgency < other._urgency

    @cached_property
    def _urgency(self) -> tuple[int, int, int]:
        return (self.message.send_order, self.message.index, self.part.tag)


class RailQueue(Protocol):
    """What waits on one rail of one sender. Times are of one clock that never goes back."""

    def add(self, parts: Sequence[Waiting]) -> None: ...

    def __bool__(self) -> bool:
        """Whether anything waits."""

    def take(self, now_seconds: float) -> Waiting | None:
        """What leaves now; to be asked again until it says None."""

    def left(self, part: Waiting, now_seconds: float) -> None:
        """The part is out of hand: with the kernel, or, where that is watched, acknowledged."""

    def seconds_until_next(self, now_seconds: float) -> float | None:
        """When take() may say more although nothing was added and nothing left; None: never."""


class InOrder:
    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def add(self, parts: Sequence[Waiting]) -> None:
        self._waiting[:0] = reversed(parts)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, now_seconds: float) -> Waiting | None:
        return self._waiting.pop() if self._waiting else None

    def left(self, part: Waiting, now_seconds: float) -> None:
        pass

    def seconds_until_next(self, now_seconds: float) -> float | None:
        return None


class UrgentFirst:
    """bytes_per_second: what this NIC carries of payload; chunk_bytes: the largest part there is.

    A receiver's most urgent part leaves while its window has room, and
    - less than a window is under way of what is more urgent or goes there too: the NIC would soon
      run dry; or
    - the more urgent are held up by their receivers, and tokens allow: the NIC could carry more.
    A receiver holds up what is under way for longer than this NIC takes for all that was handed
    over before it. Tokens come at the NIC's rate, every part takes as many as it has bytes, and at
    most a chunk's worth is kept: what a NIC did not carry it cannot carry later. Tokens alone would
    let a less urgent part in wherever the NIC is slower than was said; from then on both have a
    window in one queue, and equal shares of it.
    """

    def __init__(self, bytes_per_second: float, chunk_bytes: int) -> None:
        self._rate = bytes_per_second
        self._window = WINDOW_CHUNKS * chunk_bytes
        self._most_tokens = float(chunk_bytes)
        self._tokens, self._counted = 0.0, 0.0
        self._waiting: dict[str, list[Waiting]] = {}
        self._under_way: dict[str, list[Waiting]] = {}
        self._bytes_under_way: Counter[str] = Counter()
        self._due: dict[Waiting, float] = {}
        self._holding_up: set[str] = set()

    def add(self, parts: Sequence[Waiting]) -> None:
        for part in parts:
            heapq.heappush(self._waiting.setdefault(part.receiver, []), part)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, now_seconds: float) -> Waiting | None:
        self._count(now_seconds)
        for first in self._most_urgent():
            size, ahead = first.part.bytes, self._ahead(first)
            may_pass = self._tokens >= size and self._held_up_at(first) <= now_seconds
            if ahead + size <= self._window or not ahead or may_pass:
                return self._taken(first, now_seconds)
        return None

    def left(self, part: Waiting, now_seconds: float) -> None:
        self._under_way[part.receiver].remove(part)
        self._bytes_under_way[part.receiver] -= part.part.bytes
        if now_seconds > self._due.pop(part):
            self._holding_up.add(part.receiver)
        else:
            self._holding_up.discard(part.receiver)

    def seconds_until_next(self, now_seconds: float) -> float | None:
        self._count(now_seconds)
        pauses = [
            max(
                (first.part.bytes - self._tokens) / self._rate,
                self._held_up_at(first) - now_seconds,
                0.0,
            )
            for first in self._most_urgent()
        ]
        return min(pauses, default=None)

    def _most_urgent(self) -> Iterator[Waiting]:
        """The first of each receiver whose window has room, most urgent first."""
        for first in sorted(queue[0] for queue in self._waiting.values()):
            there = self._bytes_under_way[first.receiver]
            if not there or there + first.part.bytes <= self._window:
                yield first

    def _ahead(self, first: Waiting) -> int:
        """Bytes under way that go to the same receiver or are more urgent."""
        more_urgent = (part.part.bytes for parts in self._before(first) for part in parts)
        return self._bytes_under_way[first.receiver] + sum(more_urgent)

    def _held_up_at(self, first: Waiting) -> float:
        """From when on all more urgent receivers will be known to hold up what is under way."""
        return max(
            (
                min(self._due[part] for part in parts)
                for parts in self._before(first)
                if parts and parts[0].receiver not in self._holding_up
            ),
            default=0.0,
        )

    def _before(self, first: Waiting) -> Iterator[list[Waiting]]:
        """What is under way to each other receiver and more urgent."""
        for receiver, parts in self._under_way.items():
            if receiver != first.receiver:
                yield [part for part in parts if part < first]

    def _taken(self, part: Waiting, now_seconds: float) -> Waiting:
        queue = self._waiting[part.receiver]
        heapq.heappop(queue)
        if not queue:
            del self._waiting[part.receiver]
        if not self._bytes_under_way[part.receiver]:
            self._holding_up.discard(part.receiver)  # what was so before says nothing of this one
        self._under_way.setdefault(part.receiver, []).append(part)
        self._bytes_under_way[part.receiver] += part.part.bytes
        takes = self._bytes_under_way.total() / self._rate
        self._due[part] = now_seconds + HELD_UP_TIMES * takes + HELD_UP_SECONDS
        # No deeper debt than a window: a NIC that is faster than was said would never pay it.
        self._tokens = max(self._tokens - part.part.bytes, -float(self._window))
        return part

    def _count(self, now_seconds: float) -> None:
        passed = max(0.0, now_seconds - self._counted)
        self._counted = now_seconds
        self._tokens = min(self._most_tokens, self._tokens + passed * self._rate)


def queues_for(
    placement: Placement, device: str, rails: Sequence[str], urgent_first: bool
) -> dict[str, RailQueue]:
    """By the names that parts are counted under: each rail of this rank, and "" inside a server.

    urgent_first: whether `job` sharing's order is kept; without it messages leave as they come.
    """
    queues: dict[str, RailQueue] = {rail: InOrder() for rail in ("", *rails)}
    if SHARINGS[placement.sharing].sends_most_urgent_first and urgent_first:
        policy, cluster = SHARINGS[placement.sharing], placement.cluster
        usable = usable_rates(cluster, policy.kept_fraction(placement.floor))
        server = [one.name for one in cluster.servers].index(server_of(device))
        for nic in cluster.servers[server].nics:
            if nic.rail in queues:
                counted_on = float(usable[server, placement.cluster.rails.index(nic.rail)])
                chunk = chunk_bytes(nic.rate_bits_per_second)
                queues[nic.rail] = UrgentFirst(counted_on / 8, chunk)
    return queues
