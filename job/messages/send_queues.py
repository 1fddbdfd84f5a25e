"""Decides which part of a message leaves next; sends nothing.

`InOrder` lets every part leave as it comes. gloo's connections keep the order of one pair and rail,
and different pairs share the NIC as TCP does: the model `contended` assumes this of strict, even,
guarantee and unshaped sharing.

`UrgentFirst`, for `job` sharing, lets the most urgent part that waits on a rail leave first. gloo
and the kernel send in the order in which they are given parts, so they are given little at a time:
WINDOW_CHUNKS per receiving server, and of the next most urgent message to another server only when
little is left of the first. A receiver that takes less than the NIC could send shows as a
full window; the NIC's known rate, counted in tokens, says how much it can still carry of the next
most urgent message to another server.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from placewire.job.messages.cutting import Part
from placewire.job.messages.rank_messages import RankMessage
from placewire.optimizer.chunks import WINDOW_CHUNKS, low_water_of, pair_window_bytes
from placewire.optimizer.cluster import Cluster, Nic
from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.nics import usable_rates
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement

# A part that takes longer than its NIC needs, by this factor and these seconds, shows that its
# receiver is busy otherwise. Two senders to one receiver take twice as long; the seconds allow for
# processes of a busy machine, which wake up late.
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
    """The parts that wait on one rail of one sender. Times are of one monotonic clock."""

    def add(self, parts: Sequence[Waiting]) -> None: ...

    def __bool__(self) -> bool:
        """Whether anything waits."""

    def take(self, now_seconds: float) -> Waiting | None:
        """Returns a part that leaves now; to be called again until it returns None."""

    def left(self, part: Waiting, now_seconds: float) -> None:
        """To be called when the kernel has the part, or, where acknowledgements are watched, when
        its receiver has."""

    def seconds_until_next(self, now_seconds: float) -> float | None:
        """Returns how soon take() may return a part though none was added or left; None: never."""


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
    """bytes_per_second: payload that this NIC carries. chunk_bytes: the largest part there is.
    low_water_bytes: half a chunk at most. windows: by receiver, the most bytes under way to it,
    where that is less than two chunks.

    A receiver's most urgent part leaves while its window has room, and one of these holds:
    - Less than a window is under way of parts that are more urgent or go to the same receiver, and
      those to other receivers will soon have left: as soon as twice the low water does. The NIC
      would run dry.
    - The receivers of the more urgent parts hold these up, and there are enough tokens: the NIC
      could carry more.
    A receiver holds up a part that is under way for longer than this NIC takes for everything that
    was handed over before it. Tokens come at the NIC's rate, a part takes as many as it has bytes,
    and at most a chunk's worth is kept, because a NIC cannot make up for idle time. Tokens alone
    would let less urgent parts through wherever the NIC is slower than its given rate; from then on
    both receivers would have a window in one queue, and equal shares of the NIC.

    When a part will have left is an estimate: the NIC sends it at its rate, behind the parts under
    way to the same receiver, or behind all that is under way, where that is sooner. It counts until
    left() tells that the part has left, which comes a little late.
    """

    def __init__(
        self,
        bytes_per_second: float,
        chunk_bytes: int,
        low_water_bytes: int,
        windows: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._rate = bytes_per_second
        self._window = WINDOW_CHUNKS * chunk_bytes
        self._windows = windows
        self._soon_seconds = 2 * low_water_bytes / bytes_per_second
        self._most_tokens = float(chunk_bytes)
        self._tokens, self._counted = 0.0, 0.0
        self._waiting: dict[str, list[Waiting]] = {}
        self._under_way: dict[str, list[Waiting]] = {}
        self._bytes_under_way: Counter[str] = Counter()
        # When a part that is under way will have left, as estimated.
        self._sent_at: dict[Waiting, float] = {}
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
            is_next = ahead + size <= self._window and self._soon_alone_at(first) <= now_seconds
            if is_next or not ahead or may_pass:
                return self._taken(first, now_seconds)
        return None

    def left(self, part: Waiting, now_seconds: float) -> None:
        self._under_way[part.receiver].remove(part)
        self._bytes_under_way[part.receiver] -= part.part.bytes
        del self._sent_at[part]
        if now_seconds > self._due.pop(part):
            self._holding_up.add(part.receiver)
        else:
            self._holding_up.discard(part.receiver)

    def seconds_until_next(self, now_seconds: float) -> float | None:
        self._count(now_seconds)
        pauses = []
        for first in self._most_urgent():
            size = first.part.bytes
            tokens_at = now_seconds + (size - self._tokens) / self._rate
            at = max(tokens_at, self._held_up_at(first))
            if self._ahead(first) + size <= self._window:
                at = min(at, self._soon_alone_at(first))
            pauses.append(max(at - now_seconds, 0.0))
        return min(pauses, default=None)

    def _most_urgent(self) -> Iterator[Waiting]:
        """Yields the first part of each receiver whose window has room, most urgent first."""
        for first in sorted(queue[0] for queue in self._waiting.values()):
            there = self._bytes_under_way[first.receiver]
            window = self._windows.get(first.receiver, self._window)
            if not there or there + first.part.bytes <= window:
                yield first

    def _ahead(self, first: Waiting) -> int:
        """Returns the bytes under way that go to the same receiver or are more urgent."""
        more_urgent = (part.part.bytes for parts in self._before(first) for part in parts)
        return self._bytes_under_way[first.receiver] + sum(more_urgent)

    def _soon_alone_at(self, first: Waiting) -> float:
        """Returns the time from which on all more urgent parts to other receivers will soon have
        left."""
        ends = [self._sent_at[part] for parts in self._before(first) for part in parts]
        return max(ends, default=0.0) - self._soon_seconds

    def _held_up_at(self, first: Waiting) -> float:
        """Returns the time from which on the receivers of all more urgent parts under way count as
        holding these up."""
        return max(
            (
                min(self._due[part] for part in parts)
                for parts in self._before(first)
                if parts and parts[0].receiver not in self._holding_up
            ),
            default=0.0,
        )

    def _before(self, first: Waiting) -> Iterator[list[Waiting]]:
        """Yields, for each other receiver, the parts under way to it that are more urgent."""
        for receiver, parts in self._under_way.items():
            if receiver != first.receiver:
                yield [part for part in parts if part < first]

    def _taken(self, part: Waiting, now_seconds: float) -> Waiting:
        queue = self._waiting[part.receiver]
        heapq.heappop(queue)
        if not queue:
            del self._waiting[part.receiver]
        if not self._bytes_under_way[part.receiver]:
            # Whether the receiver held up earlier parts says nothing of this one.
            self._holding_up.discard(part.receiver)
        there = self._under_way.setdefault(part.receiver, [])
        behind = max(now_seconds, self._sent_at[there[-1]]) if there else now_seconds
        there.append(part)
        self._bytes_under_way[part.receiver] += part.part.bytes
        takes = self._bytes_under_way.total() / self._rate
        self._sent_at[part] = min(now_seconds + takes, behind + part.part.bytes / self._rate)
        self._due[part] = now_seconds + HELD_UP_TIMES * takes + HELD_UP_SECONDS
        # Debt is limited to a window: with a NIC above its given rate it would grow without end.
        self._tokens = max(self._tokens - part.part.bytes, -float(self._window))
        return part

    def _count(self, now_seconds: float) -> None:
        passed = max(0.0, now_seconds - self._counted)
        self._counted = now_seconds
        self._tokens = min(self._most_tokens, self._tokens + passed * self._rate)


def queues_for(
    placement: Placement, device: str, rails: Sequence[str], urgent_first: bool
) -> dict[str, RailQueue]:
    """Returns a queue for each rail of this rank, and under "" the queue inside the server.

    urgent_first: whether `job` sharing's send order is kept; if not, messages leave as they come.
    """
    queues: dict[str, RailQueue] = {rail: InOrder() for rail in ("", *rails)}
    policy, cluster = SHARINGS[placement.sharing], placement.cluster
    if policy.sends_most_urgent_first and urgent_first:
        usable = usable_rates(cluster, policy.kept_fraction(placement.floor))
        server = [one.name for one in cluster.servers].index(server_of(device))
        for nic in cluster.servers[server].nics:
            if nic.rail in queues:
                counted_on = float(usable[server, placement.cluster.rails.index(nic.rail)])
                chunk = pair_window_bytes(nic, nic) // WINDOW_CHUNKS
                windows = _windows(cluster, nic)
                queues[nic.rail] = UrgentFirst(counted_on / 8, chunk, low_water_of(nic), windows)
    return queues


def _windows(cluster: Cluster, nic: Nic) -> dict[str, int]:
    """By receiver with a NIC on this rail: the smaller window of the two NICs."""
    return {
        server.name: pair_window_bytes(nic, other)
        for server in cluster.servers
        for other in server.nics
        if other.rail == nic.rail
    }
