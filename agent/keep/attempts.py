"""When a change that failed is tried again, and whether what is in force is known to be whole."""

from __future__ import annotations

from collections.abc import Callable

from placewire.agent.reconcile.effects import UnreadableError
from placewire.agent.reconcile.lease import retry_seconds


class Attempts:
    """elapsed: seconds of a clock that nobody sets.

    whole: False from a start until what is on disk was found, or made, to be in force.
    """

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._tried_at = elapsed()
        self._failures = 0
        self.whole = True

    def begin(self) -> None:
        self._tried_at = self._elapsed()

    def succeeded(self) -> None:
        self.whole, self._failures = True, 0

    def failed(self, error: Exception) -> None:
        """What failed without a change being tried may be tried again soon, and costs nothing."""
        if not isinstance(error, UnreadableError):
            self._failures += 1

    def broke(self) -> None:
        """What is in force is no longer whole, and the attempt at that failed."""
        self.whole = False
        self._failures += 1

    def seconds_until_next(self) -> float:
        pause = retry_seconds(self._failures)
        return max(0.0, self._tried_at + pause - self._elapsed())
