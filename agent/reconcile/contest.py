"""Decides for how long to leave an object alone that another program changes again and again. Pure.

Two programs that fight over an object can go on for ever, and each round disturbs traffic. So an
object that was put back and changed again is left alone for a while, for longer each time. After
MOST_HEALS the agent only reports it, until FORGOTTEN_SECONDS have passed since the last heal.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from placewire.agent.reconcile.lease import retry_seconds

MOST_HEALS = 6
FORGOTTEN_SECONDS = 3600.0


class Contest(NamedTuple):
    heals: int
    healed_at: float

    def pause_ends_at(self) -> float:
        given_up = self.heals >= MOST_HEALS
        return self.healed_at + (FORGOTTEN_SECONDS if given_up else retry_seconds(self.heals))


@dataclass(frozen=True)
class Contests:
    """of: by subject (drift.subject_of). Times are seconds of a clock that nobody sets."""

    of: dict[str, Contest] = field(default_factory=dict)

    def healed(self, subjects: Collection[str], now: float) -> Contests:
        recent = {s: c for s, c in self.of.items() if now < c.healed_at + FORGOTTEN_SECONDS}
        counted = {s: Contest(recent[s].heals + 1 if s in recent else 1, now) for s in subjects}
        return Contests(recent | counted)

    def left_alone(self, subjects: Collection[str], now: float) -> dict[str, float]:
        """Those of `subjects` that must not be put back yet, each with the seconds left."""
        pauses = {s: self.of[s].pause_ends_at() - now for s in subjects if s in self.of}
        return {subject: pause for subject, pause in pauses.items() if pause > 0}

    def is_given_up(self, subject: str) -> bool:
        return subject in self.of and self.of[subject].heals >= MOST_HEALS
