"""Decides when to read back the state in force: soon after an event, rarely without one. Pure.

Times are seconds of a clock that nobody sets. Reading costs processor time, more on a server with
many queues. Pauses therefore grow with the time that the last look took: looking takes a small
share of a core whatever happens, and almost nothing while nothing happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Events come in bursts: a look waits until none has come for so long, and no longer than that.
SETTLE_SECONDS = 0.25
LONGEST_SETTLING_SECONDS = 2.0
# The pause between a look and the next one that an event causes: at least LEAST_PAUSE_SECONDS, and
# 2 times as long as reading took. The factor doubles with each look in a row that found nothing, up
# to 20 (5 % of a core under endless events that do not concern us).
LEAST_PAUSE_SECONDS = 1.0
PAUSES_AFTER_EVENT = (2, 20)
# The pause without any event, for what no event tells of (0.1 % of a core).
PERIOD_SECONDS = 60.0
PAUSES_WITHOUT_EVENT = 1000


@dataclass(frozen=True)
class NextLook:
    """looked_at: when the last look ended. read_seconds: how long its reading took. in_vain: how
    many looks in a row were caused by an event and found nothing. first_event, last_event: of the
    events since the last look began. again_at: when to look again at what it found."""

    looked_at: float
    read_seconds: float = 0.0
    in_vain: int = 0
    first_event: float | None = None
    last_event: float | None = None
    again_at: float | None = None

    def noticed(self, now: float) -> NextLook:
        first = now if self.first_event is None else self.first_event
        return replace(self, first_event=first, last_event=now)

    def looked(
        self,
        began: float,
        now: float,
        *,
        read_seconds: float = 0.0,
        found: bool = False,
        again_in: float | None = None,
    ) -> NextLook:
        """An event during the look counts for the next one, as the look may have missed it."""
        left = self.last_event is not None and self.last_event >= began
        in_vain = self.first_event is not None and not found
        return NextLook(
            looked_at=now,
            read_seconds=read_seconds,
            in_vain=self.in_vain + 1 if in_vain else 0,
            first_event=self.last_event if left else None,
            last_event=self.last_event if left else None,
            again_at=None if again_in is None else now + again_in,
        )

    def rested(self, now: float, read_seconds: float) -> NextLook:
        """All was read back just now and found as wanted; events meanwhile still count."""
        return replace(self, looked_at=now, read_seconds=read_seconds, again_at=None)

    @property
    def due_at(self) -> float:
        due = self.looked_at + max(PERIOD_SECONDS, self.read_seconds * PAUSES_WITHOUT_EVENT)
        if self.again_at is not None:
            due = min(due, self.again_at)
        if self.first_event is not None and self.last_event is not None:
            settled = min(
                self.last_event + SETTLE_SECONDS, self.first_event + LONGEST_SETTLING_SECONDS
            )
            fewest, most = PAUSES_AFTER_EVENT
            pauses = min(fewest * 2 ** min(self.in_vain, 10), most)
            rested = self.looked_at + max(LEAST_PAUSE_SECONDS, self.read_seconds * pauses)
            due = min(due, max(settled, rested))
        return due
