"""Emulates in a replay the set-up latency (p0) of messages, and the path inside a server.

The real network carries the bytes; before that a message waits as long as its set-up takes under
the model `contended`. Under `job` sharing every message's set-up begins when the message is sent.
Under the other sharings messages to one device on one rail are served first come, first served: a
set-up begins when the message before has been carried, at the highest rate that the network allows.
Inside a server the kernel carries bytes almost at once, so that their time is emulated as well.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from placewire.job.messages.send_queues import RailQueue, Waiting
from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement

# What a message really takes through this process, gloo and the kernel: measured over the lab's
# shaped links (0.4 to 0.5 ms, two busy cores). The emulation adds only the rest of a set-up.
TRANSPORT_SECONDS = 0.0004


class SetUp:
    """A queue whose messages are first set up. bytes_per_second: the rate of the channel to each
    device. in_turn: whether messages to one device wait for each other. carried: whether a message
    also waits for the time that its bytes take."""

    def __init__(
        self,
        queue: RailQueue,
        setup_seconds: float,
        bytes_per_second: Mapping[str, float],
        *,
        in_turn: bool,
        carried: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._setup, self._rates = queue, setup_seconds, bytes_per_second
        self._in_turn, self._carried, self._clock = in_turn, carried, clock
        self._free: dict[str, float] = {}
        self._setting_up: list[tuple[float, int, Sequence[Waiting]]] = []
        self._count = 0

    def add(self, parts: Sequence[Waiting]) -> None:
        """parts: of one message."""
        device = parts[0].message.peer_device
        takes = sum(one.part.bytes for one in parts) / self._rates[device]
        begin = self._clock()
        if self._in_turn:
            begin = max(begin, self._free.get(device, -math.inf))
        ready = begin + self._setup + (takes if self._carried else 0.0)
        self._free[device] = begin + self._setup + takes
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
    device: str,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, RailQueue]:
    """queues: by rail, "" inside the server."""
    setup = max(0.0, placement.cluster.setup_latency_seconds - TRANSPORT_SECONDS)
    urgent_first = SHARINGS[placement.sharing].sends_most_urgent_first
    peers = [other for other in placement.devices_used if other != device]
    made: dict[str, RailQueue] = {}
    for rail, queue in queues.items():
        rates = {peer: _channel_rate(placement, device, peer, rail) / 8 for peer in peers}
        turns = not (rail and urgent_first)
        made[rail] = SetUp(queue, setup, rates, in_turn=turns, carried=not rail, clock=clock)
    return made


def _channel_rate(placement: Placement, source: str, destination: str, rail: str) -> float:
    """Returns the most bits per second that one pair of devices can have: its part of its servers'
    rate where the sharing caps pairs, else the slower NIC's rate; inf where no NIC limits it."""
    if not rail:
        return placement.cluster.intra_server_bits_per_second
    ends = (server_of(source), server_of(destination))
    if SHARINGS[placement.sharing].caps_pairs:
        used = {(m.source, m.destination) for m in placement.messages}
        pairs = Counter((server_of(a), server_of(b)) for a, b in used)
        for *between, on, rate in placement.rates_bits_per_second:
            if tuple(between) == ends and on == rail:
                return rate / max(pairs[ends], 1)
    rates = [
        nic.rate_bits_per_second
        for server in placement.cluster.servers
        for nic in server.nics
        if server.name in ends and nic.rail == rail
    ]
    return min(rates) if len(rates) == len(set(ends)) else math.inf
