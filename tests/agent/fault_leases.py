"""The law of leases: a state under a lease ends when its time is over, neither later nor earlier,
whatever the wall clock says meanwhile. Times are in seconds of a clock that nobody sets."""

from __future__ import annotations

import math

from placewire.agent.contract.state import LeaseState

# How late an agent that runs may be, and how early one may be that rounds.
LATE_SECONDS, EARLY_SECONDS = 5.0, 1.0


class Leases:
    def __init__(self) -> None:
        # By generation: the longest time ever granted, when that ends at the latest, and when it
        # ends at the earliest by what the agent surely has on disk.
        self._longest: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._sure: dict[int, float] = {}
        self._started = 0.0

    def granted(self, generation: int, seconds: float | None, now: float, *, sure: bool) -> None:
        """seconds: None for good. sure: the agent said that it took it, and has it on disk."""
        long = math.inf if seconds is None else seconds
        self._longest[generation] = max(long, self._longest.get(generation, 0.0))
        self._ends[generation] = max(now + long, self._ends.get(generation, 0.0))
        former = self._sure.get(generation, 0.0)
        self._sure[generation] = now + long if sure else min(former, now + long)

    def agent_starts(self, now: float) -> None:
        self._started = now

    def reboot(self, now: float) -> None:
        """The other clock begins anew: a lease may last as long as it was granted at most."""
        self._ends = {generation: now + long for generation, long in self._longest.items()}
        self._sure = {}

    def forget(self) -> None:
        """The agent's memory was damaged."""
        self._sure = {}

    def late(self, lease: LeaseState, now: float) -> str:
        """What is wrong with a state that is in force now; "" for nothing."""
        if not lease.is_in_force or lease.is_kept:
            return ""
        long = self._longest.get(lease.generation, math.inf)
        ends = max(self._ends.get(lease.generation, math.inf), self._started + long)
        if now <= ends + LATE_SECONDS:
            return ""
        over = now - self._ends[lease.generation]
        return (
            f"generation {lease.generation} is in force {over:.0f} s after its lease of {long:g} s"
        )

    def early(self, former: LeaseState, lease: LeaseState, now: float) -> str:
        """What is wrong with an end that nobody asked for; "" for nothing."""
        if not former.is_in_force or former.is_kept or lease.generation == former.generation:
            return ""
        left = self._sure.get(former.generation, 0.0) - now
        if left <= EARLY_SECONDS:
            return ""
        return f"the lease of generation {former.generation} ended {left:.0f} s too early"
