"""Keeps when one device is busy, and finds gaps that are long enough."""

from __future__ import annotations

from bisect import bisect_right


class TimeSlots:
    """Busy intervals in ascending order; no two of them touch."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def earliest(self, ready: float, seconds: float) -> float:
        """The first time from `ready` on at which `seconds` are free."""
        at = ready
        for k in range(bisect_right(self._ends, ready), len(self._starts)):
            if at + seconds <= self._starts[k]:
                break
            at = max(at, self._ends[k])
        return at

    def take(self, start: float, seconds: float) -> None:
        """Marks [start, start + seconds) as busy; it must be free."""
        if seconds <= 0.0:
            return
        k, end = bisect_right(self._starts, start), start + seconds
        if k > 0 and self._ends[k - 1] == start:
            k -= 1
            start, _ = self._starts.pop(k), self._ends.pop(k)
        if k < len(self._starts) and self._starts[k] == end:
            _, end = self._starts.pop(k), self._ends.pop(k)
        self._starts.insert(k, start)
        self._ends.insert(k, end)
