"""Somebody changes again and again what we put back: how long to leave which object alone. Pure.

Two programs that fight over an object can go on for ever, and each round disturbs traffic. So what
was put back once is left alone for a while after it changed again, for longer each time; and after
MOST_HEALS it is only told of, until FORGOTTEN_SECONDS have passed since it was last put back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from placewire.agent.reconcile.lease import retry_seconds

MOST_HEALS = 6
FORGOTTEN_SECONDS = 3600.0


class Contest(NamedTuple):
    heals: int
    healed_at: float

    def pause_ends_at(self) -> float:
        if self.heals >= MOST_HEALS:
            return self.healed_at + FORGOTTEN_SECONDS
        return self.healed_at + retry_seconds(self.heals)


@dataclass(frozen=True)
class Contests:
    """By subject (drift.py): how often it was put back, and when last. Times are
    seconds of one clock that nobody sets."""

    of: dict[str, Contest] = field(default_factory=dict)

    def healed(self, subjects: Collection[str], now: float) -> Contests:
        recent = {s: c for s, c in self.of.items() if now < c.healed_at + FORGOTTEN_SECONDS}
        counted = {s: Contest(recent[s].heals + 1 if s in recent else 1, now) for s in subjects}
        return replace(self, of=recent | counted)

    def left_alone(self, subjects: Collection[str], now: float) -> dict[str, float]:
        """Of these, those that are not to be put back yet: for how many seconds."""
        pauses = {s: self.of[s].pause_ends_at() - now for s in subjects if s in self.of}
        return {subject: pause for subject, pause in pauses.items() if pause > 0}

    def is_given_up(self, subject: str) -> bool:
        return subject in self.of and self.of[subject].heals >= MOST_HEALS
