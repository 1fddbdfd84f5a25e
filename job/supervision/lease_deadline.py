"""Ends a rank when the lease of its network runs out.

The controller renews the network's lease and tells every rank. When the controller is gone, ranks
go on until the lease runs out; then their servers restore the network, and the ranks end. A rank
that was never told of a lease runs to its end.
"""

from __future__ import annotations

import os
import select
import threading
import time

from pydantic import ValidationError

from placewire.job.contract.specification import Failed, Hold
from placewire.job.supervision.events import Events

_LONGEST_LINE_BYTES = 4096


def follow_hold(events: Events, rank: int) -> None:
    """Reads Hold messages from standard input, which is empty for everything else from then on. To
    be called before anything reads it."""
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    follower = _Follower(descriptor, events, rank)
    threading.Thread(target=follower.run, name="hold", daemon=True).start()


class _Follower:
    def __init__(self, descriptor: int, events: Events, rank: int) -> None:
        self._descriptor, self._events, self._rank = descriptor, events, rank
        self._until: float | None = None
        self._told_to_the_end = False
        self._unread = b""

    def run(self) -> None:
        while not (self._told_to_the_end and self._until is None):
            if self._wait():
                self._read()
            elif self._until is not None and _now() >= self._until:
                self._end()

    def _wait(self) -> bool:
        """Waits until there is something to read or the lease runs out. Returns whether there is
        something to read: a message that has arrived is read before the rank is ended."""
        remaining = None if self._until is None else max(0.0, self._until - _now())
        if self._told_to_the_end:
            time.sleep(remaining or 0.0)
            return False
        return bool(select.select([self._descriptor], [], [], remaining)[0])

    def _read(self) -> None:
        chunk = os.read(self._descriptor, _LONGEST_LINE_BYTES)
        if not chunk:
            self._told_to_the_end = True
            if self._until is not None:
                self._events.nobody_listens()
            return
        *lines, rest = (self._unread + chunk).split(b"\n")
        self._unread = rest[-_LONGEST_LINE_BYTES:]
        for line in lines:
            try:
                self._until = _now() + Hold.model_validate_json(line).held_seconds
            except ValidationError:
                continue  # another kind of message, or another version of Hold

    def _end(self) -> None:
        self._events.emit(
            Failed(
                rank=self._rank,
                what="the lease of the network ran out, and the controller did not renew it",
                remedy="start the controller again: `controller apply` goes on from the last "
                "checkpoint",
            )
        )
        self._events.exit(1)


def _now() -> float:
    """The clock by which leases are counted: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
