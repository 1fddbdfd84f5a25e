"""Says what a script's servers send while it runs, ever less often: a run may take weeks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placewire.job.contract.specification import Carried
from placewire.optimizer.quantities import format_bytes

LOOK_SECONDS = 60.0
# Connections send so much by themselves, to be kept open; a script that trains sends more.
_IDLE_BYTES = 64 << 10


@dataclass
class _Server:
    """looked: what it had sent when it was looked at last. sum_due_seconds: when what it sent is
    told next. busy_seconds: when it was last seen to send. idle_due_seconds: after how long a
    stretch of next to nothing that is told next. patience_seconds: how long a stretch is not told
    at first; twice as long after each that was told and then came to its end."""

    looked: Carried
    sum_due_seconds: float = LOOK_SECONDS
    sum_pause_seconds: float = LOOK_SECONDS
    busy_seconds: float = 0.0
    idle_due_seconds: float = LOOK_SECONDS
    patience_seconds: float = LOOK_SECONDS


class SentByScript:
    """servers: how many the script runs on. One alone has nobody to send to: nothing is said."""

    def __init__(self, servers: int) -> None:
        self._several = servers > 1
        self._by_rank: dict[int, _Server] = {}

    def told(self, event: Carried) -> Iterator[str]:
        """Yields the sentences that are due now. A server may rightly send nothing for a while, as
        while a checkpoint is written; after each such stretch that was told, the next is told
        later. That a script hangs is told however long it trained before."""
        nothing = Carried(rank=event.rank, seconds=0.0, sent_bytes={})
        server = self._by_rank.setdefault(event.rank, _Server(nothing))
        now = event.seconds
        if not self._several or now - server.looked.seconds < LOOK_SECONDS:
            return
        more = sum(event.sent_bytes.values()) - sum(server.looked.sent_bytes.values())
        server.looked = event
        if now >= server.sum_due_seconds:
            server.sum_pause_seconds *= 2
            server.sum_due_seconds = now + server.sum_pause_seconds
            sent = ", ".join(f"{format_bytes(b)} on {r}" for r, b in event.sent_bytes.items())
            yield f"rank {event.rank}'s server has sent {sent}"
        idle_seconds = now - server.busy_seconds
        if more >= _IDLE_BYTES:
            server.busy_seconds = now
            if server.idle_due_seconds > server.patience_seconds:
                server.patience_seconds *= 2
            server.idle_due_seconds = server.patience_seconds
        elif idle_seconds >= server.idle_due_seconds:
            server.idle_due_seconds *= 2
            yield (
                f"rank {event.rank}'s server has sent next to nothing for "
                f"{idle_seconds:.0f} s: its script computes for long, or waits; "
                "`controller logs PLAN` has what it printed, and Ctrl-C ends it"
            )
