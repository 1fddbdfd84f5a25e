"""Says when to try a failed change again: after a pause that grows with each failure in a row."""

from __future__ import annotations

from collections.abc import Callable

from placewire.agent.reconcile.effects import NotDurableError, UnreadableError
from placewire.agent.reconcile.lease import retry_seconds


class Retry:
    """elapsed: seconds of a clock that nobody sets."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._tried_at = elapsed()
        self._failures = 0

    def begin(self) -> None:
        self._tried_at = self._elapsed()

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """An error of reading does not count, nor one of the disk after all was changed: trying
        again disturbs nothing."""
        if not isinstance(error, (UnreadableError, NotDurableError)):
            self._failures += 1

    def seconds_until_next(self) -> float:
        return max(0.0, self._tried_at + retry_seconds(self._failures) - self._elapsed())
