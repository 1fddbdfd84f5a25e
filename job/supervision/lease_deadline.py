"""Ends a rank when the lease of its network runs out.

A rank is started with the time that the lease has then; the controller renews the lease and tells
every rank. When the controller is gone, ranks go on until the lease runs out; then their servers
restore the network, and the ranks end. A rank without a lease runs to its end.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from pydantic import ValidationError

from placewire.job.contract.specification import Failed, Hold
from placewire.job.supervision.events import Events

_LONGEST_LINE_BYTES = 4096


def follow_hold(events: Events, rank: int, held_seconds: float | None) -> None:
    """Takes over standard input to read Hold messages. To be called before anything reads it.
    held_seconds: how long from now the rank may run without one; None: to its end."""
    until = None if held_seconds is None else _now() + held_seconds
    told = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    following = (told, events, rank, until)
    threading.Thread(target=_follow, args=following, name="hold", daemon=True).start()


def _follow(told: int, events: Events, rank: int, until: float | None) -> None:
    unread = b""
    while True:
        within = None if until is None else max(0.0, until - _now())
        # A message that has arrived is read before the rank is ended.
        if not select.select([told], [], [], within)[0]:
            if until is not None and _now() >= until:
                break
            continue
        chunk = os.read(told, _LONGEST_LINE_BYTES)
        if not chunk:
            if until is None:
                return
            events.nobody_listens()
            while (left := until - _now()) > 0:
                time.sleep(left)
            break
        *lines, rest = (unread + chunk).split(b"\n")
        unread = rest[-_LONGEST_LINE_BYTES:]
        for line in lines:
            # What cannot be read is another kind of message, or another version of Hold.
            with contextlib.suppress(ValidationError):
                until = _now() + Hold.model_validate_json(line).held_seconds
    events.fail(
        Failed(
            rank=rank,
            what="the lease of the network ran out, and the controller did not renew it",
            remedy="start the controller again: `controller apply` goes on from the last "
            "checkpoint",
        )
    )


def _now() -> float:
    """The clock by which leases are counted: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
