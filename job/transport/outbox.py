"""Hands parts of messages to gloo as the queues of send_queues.py decide, and waits for them.

A part is handed over by the thread that makes it ready: the rank's main thread for a message that
may leave at once, a lane's thread when something left, the pacer when only time had to pass. gloo
tells only a waiter that a send is done, so every lane (receiving server, rail) has a thread that
waits for its parts under way, oldest first; it waits without the lock and without the interpreter.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage
from placewire.job.messages.send_queues import RailQueue, Waiting
from placewire.job.transport.tcp_connections import Backlog, Drain
from placewire.job.transport.transport import Watcher

# From this size on a lane waits for a part at once, so that its value is released. It waits for
# smaller parts only when asked: waking a thread takes longer than sending them.
WAITED_FOR_BYTES = 64 * 1024

# The kernel is asked what is left unsent when, by the known rates, that can have been carried, but
# no more often than this: asking takes a system call and the interpreter, for every receiver and
# rail, on a core that the operators need.
LOOK_SECONDS = 0.0005


class Work(Protocol):
    def wait(self) -> bool:
        """Returns when the kernel has the part. Raises RuntimeError where sending fails."""


# Gives one part of a message to gloo.
Post = Callable[[Waiting, torch.Tensor], Work]


class Outbox:
    """queues: by rail, "" inside the server. describe: makes the error of a message whose sending
    failed. lost: called in a lane's thread that failed, so that it can end the waits of others.

    backlog: where set, a part is under way until its receiver has it. watcher: where set and on, it
    is told of every part, and lanes wait for small parts at once too.
    """

    def __init__(
        self,
        post: Post,
        queues: Mapping[str, RailQueue],
        describe: Callable[[RankMessage, RuntimeError], JobError],
        lost: Callable[[], None],
    ) -> None:
        self._post, self._describe, self._lost = post, describe, lost
        self._queues = queues
        # One lock suffices: work under it takes microseconds.
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._alarm = threading.Condition(self._lock)
        self._alarms: dict[str, float] = {}
        self._pacer: threading.Thread | None = None
        self._closed = False
        self._waiters = 0
        self.backlog: Backlog | None = None
        self._wires: dict[int, torch.Tensor] = {}
        self._left_over: Counter[int] = Counter()
        self.watcher: Watcher | None = None
        self.error: JobError | None = None

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        """wire must not change until complete(message) returns."""
        if not message.parts:
            return
        with self._lock:
            self._check()
            self._wires[message.index] = wire
            self._left_over[message.index] = len(message.parts)
            by_rail: dict[str, list[Waiting]] = {}
            for part, rail in zip(message.parts, message.rail_names, strict=True):
                by_rail.setdefault(rail, []).append(Waiting(message, part))
            for rail, parts in by_rail.items():
                if (message.peer_server, rail) not in self._lanes:
                    lane = self._lanes[message.peer_server, rail] = _Lane(self, rail, self._lock)
                    lane.thread.start()
                self._queues[rail].add(parts)
                self._feed(rail)
            self._check()

    def complete(self, message: RankMessage) -> None:
        """Raises JobError as soon as any send has failed."""
        self._wait_until(lambda: message.index not in self._left_over)

    def complete_all(self) -> None:
        self._wait_until(lambda: not self._left_over)

    def _wait_until(self, done: Callable[[], bool]) -> None:
        with self._lock:
            if not done():
                self._waiters += 1
                self._call_lanes()
                self._done.wait_for(lambda: self.error is not None or done())
                self._waiters -= 1
            self._check()

    def close(self) -> None:
        """To be called after complete_all(), or after a failure, where threads are not awaited."""
        with self._lock:
            self._closed = True
            self._alarm.notify()
            for lane in self._lanes.values():
                lane.wake.notify()
        threads = [lane.thread for lane in self._lanes.values()]
        if self._pacer is not None:
            threads.append(self._pacer)
        for thread in threads:
            if self.error is None:
                thread.join()

    def _call_lanes(self, rail: str | None = None) -> None:
        for (_, name), lane in self._lanes.items():
            if lane.under_way and rail in (None, name):
                lane.call()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _feed(self, rail: str) -> None:
        """Hands over all parts that may leave now. The caller holds the lock."""
        queue = self._queues[rail]
        while (part := queue.take(time.monotonic())) is not None:
            message, started = part.message, time.perf_counter()
            try:
                work = self._post(part, self._wires[message.index])
            except RuntimeError as error:
                self._fail(self._describe(message, error))
                return
            lane = self._lanes[part.receiver, rail]
            lane.under_way.append((part, work, started))
            watched = self.watcher is not None and self.watcher.on
            if watched or part.part.bytes >= WAITED_FOR_BYTES:
                lane.call()
        if queue or self._waiters:
            self._call_lanes(rail)
            self._set_alarm(rail)

    def _set_alarm(self, rail: str) -> None:
        """Lets the pacer feed the rail when a part will have waited long enough."""
        now = time.monotonic()
        pause = self._queues[rail].seconds_until_next(now)
        if pause is None:
            self._alarms.pop(rail, None)
            return
        self._alarms[rail] = now + pause
        if self._pacer is None:
            self._pacer = threading.Thread(target=self._pace, name="pacer", daemon=True)
            self._pacer.start()
        self._alarm.notify()

    def _pace(self) -> None:
        with self._lock:
            while not self._closed and self.error is None:
                if not self._alarms:
                    self._alarm.wait()
                    continue
                rail, due = min(self._alarms.items(), key=lambda item: item[1])
                if (pause := due - time.monotonic()) > 0:
                    self._alarm.wait(pause)
                else:
                    del self._alarms[rail]
                    self._feed(rail)

    def _fail(self, error: JobError) -> None:
        if self.error is None:
            self.error = error
        self._done.notify_all()

    def run(self, lane: _Lane) -> None:
        """Runs in a lane's thread."""
        while True:
            with self._lock:
                lane.called = lane.called and bool(lane.under_way)
                while not lane.called:
                    if self._closed or self.error is not None:
                        return
                    lane.wake.wait()
                part, work, started = lane.under_way[0]
            try:
                work.wait()
            except RuntimeError as error:
                with self._lock:
                    self._fail(self._describe(part.message, error))
                self._lost()
                return
            del work  # it would hold the part's value until the next part
            with self._lock:
                if self.watcher is not None and self.watcher.on:
                    self.watcher.left(part.message, lane.rail, started, time.perf_counter())
                index = part.message.index
                self._left_over[index] -= 1
                if not self._left_over[index]:
                    del self._left_over[index], self._wires[index]
                    self._done.notify_all()
            self._await_receiver(lane, part)
            with self._lock:
                lane.under_way.popleft()
                self._queues[lane.rail].left(part, time.monotonic())
                self._feed(lane.rail)

    def _await_receiver(self, lane: _Lane, part: Waiting) -> None:
        """Where there is a backlog, waits until only what was handed over later is on its way."""
        drain = Drain()
        while self.backlog is not None:
            with self._lock:
                later = sum(one.part.bytes for one, _, _ in list(lane.under_way)[1:])
                if self._closed or self.error is not None:
                    return
            left = self.backlog.unacknowledged_bytes(part.receiver, lane.rail)
            held_back = self.backlog.held_back_bytes(part.receiver, lane.rail)
            too_much = left - later - held_back
            if too_much <= 0:
                return
            least_seconds = self.backlog.least_seconds(lane.rail, too_much)
            as_before_seconds = drain.seconds_until_gone(too_much, time.monotonic())
            time.sleep(max(LOOK_SECONDS, least_seconds, as_before_seconds))


class _Lane:
    """The parts under way to one receiving server on one rail."""

    def __init__(self, outbox: Outbox, rail: str, lock: threading.Lock) -> None:
        self.rail = rail
        self.wake = threading.Condition(lock)
        self.under_way: deque[tuple[Waiting, Work, float]] = deque()
        self.called = False
        self.thread = threading.Thread(
            target=outbox.run, args=(self,), name=f"sends on {rail or 'this server'}", daemon=True
        )

    def call(self) -> None:
        """Makes the lane's thread wait for parts until none is under way."""
        if not self.called:
            self.called = True
            self.wake.notify()
