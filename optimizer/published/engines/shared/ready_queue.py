"""The operators that one device may run next: the earliest first, and of those that it could start
at once the most urgent."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class ReadyQueue:
    """Two heaps: what is ready later, by time; and what was ready when the device was last asked,
    by urgency. The device's clock never goes back."""

    def __init__(self, urgency: list[float]) -> None:
        self._urgency = urgency
        self._later: list[tuple[float, float, int]] = []
        self._ready: list[tuple[float, int]] = []

    def add(self, at: float, operator: int) -> None:
        """Ready at that time; ties by urgency, then by number."""
        heapq.heappush(self._later, (at, -self._urgency[operator], operator))

    def first(self, now: float, stays: Callable[[int], bool]) -> tuple[float, int] | None:
        """(start, operator) of what a device that is free from `now` on would run first, which is
        not taken out; None where there is nothing. What does not stay is dropped for good."""
        later, ready = self._later, self._ready
        while later and (later[0][0] <= now or not stays(later[0][2])):
            _, urgency, operator = heapq.heappop(later)
            if stays(operator):
                heapq.heappush(ready, (urgency, operator))
        while ready and not stays(ready[0][1]):
            heapq.heappop(ready)
        if ready:
            return now, ready[0][1]
        return (later[0][0], later[0][2]) if later else None
