"""A queue of the operators that one device may run next: the earliest first, and among operators
that could start at once the most urgent."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class ReadyQueue:
    """Two heaps: the operators that become ready later, by time, and those that were ready when
    the device last asked, by urgency. The device's clock never goes back."""

    def __init__(self, urgency: list[float]) -> None:
        self._urgency = urgency
        self._later: list[tuple[float, float, int]] = []
        self._ready: list[tuple[float, int]] = []

    def add(self, at: float, operator: int) -> None:
        """at: when the operator becomes ready; ties go by urgency, then by number."""
        heapq.heappush(self._later, (at, -self._urgency[operator], operator))

    def first(self, now: float, stays: Callable[[int], bool]) -> tuple[float, int] | None:
        """(start, operator) that a device free from `now` on would run first; None without any.
        The operator stays in the queue. Operators for which `stays` is False are dropped for good.
        """
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
