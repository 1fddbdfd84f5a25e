"""Emulates in a replay the set-up latency (p0) of messages, and the path inside a server.

The real network carries the bytes; before that a message waits as long as its set-up takes under
the model `contended`, from when it is sent, whatever else is under way. Inside a server the kernel
carries bytes almost at once, so that their time is emulated as well: there messages to one device
are carried one after another.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence

from placewire.job.messages.send_queues import RailQueue, Waiting
from placewire.optimizer.placement import Placement

# What a message really takes through this process, gloo and the kernel: measured over the lab's
# shaped links (0.4 to 0.5 ms, two busy cores). The emulation adds only the rest of a set-up.
TRANSPORT_SECONDS = 0.0004


class SetUp:
    """A queue whose messages are first set up. bytes_per_second: the rate at which messages to one
    device are carried, one after another; None where what the queue leads to carries them."""

    def __init__(
        self,
        queue: RailQueue,
        setup_seconds: float,
        bytes_per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._setup, self._rate = queue, setup_seconds, bytes_per_second
        self._clock = clock
        self._free: dict[str, float] = {}
        self._setting_up: list[tuple[float, int, Sequence[Waiting]]] = []
        self._count = 0

    def add(self, parts: Sequence[Waiting]) -> None:
        """parts: of one message."""
        ready = self._clock() + self._setup
        if self._rate is not None:
            device = parts[0].message.peer_device
            begin = max(ready, self._free.get(device, ready))
            ready = begin + sum(one.part.bytes for one in parts) / self._rate
            self._free[device] = ready
        self._count += 1
        heapq.heappush(self._setting_up, (ready, self._count, parts))

    def __bool__(self) -> bool:
        return bool(self._setting_up) or bool(self._queue)

    def take(self, now_seconds: float) -> Waiting | None:
        while self._setting_up and self._setting_up[0][0] <= now_seconds:
            self._queue.add(heapq.heappop(self._setting_up)[2])
        return self._queue.take(now_seconds)

    def left(self, part: Waiting, now_seconds: float) -> None:
        self._queue.left(part, now_seconds)

    def seconds_until_next(self, now_seconds: float) -> float | None:
        pauses = [self._queue.seconds_until_next(now_seconds)]
        if self._setting_up:
            pauses.append(max(0.0, self._setting_up[0][0] - now_seconds))
        return min((pause for pause in pauses if pause is not None), default=None)


def with_set_up(
    queues: Mapping[str, RailQueue],
    placement: Placement,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, RailQueue]:
    """queues: by rail, "" inside the server."""
    setup = max(0.0, placement.cluster.setup_latency_seconds - TRANSPORT_SECONDS)
    inside = placement.cluster.intra_server_bits_per_second / 8
    return {
        rail: SetUp(queue, setup, None if rail else inside, clock) for rail, queue in queues.items()
    }
