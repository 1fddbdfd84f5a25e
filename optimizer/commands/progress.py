"""The lines that a search prints while it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from placewire.optimizer.commands.outcome import say
from placewire.optimizer.quantities import format_step

if TYPE_CHECKING:
    from placewire.optimizer.engines.solution import Progress


class ProgressLines:
    """Prints a line when the incumbent improves, and at least every 3 seconds."""

    def __init__(self) -> None:
        self._best = float("inf")
        self._said = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if progress.words:
            say(progress.words)
        now = time.monotonic()
        better = progress.incumbent_seconds < self._best * 0.999
        if not (better and now - self._said > 0.2) and now - self._said < 3.0:
            return
        self._best, self._said = min(self._best, progress.incumbent_seconds), now
        best = progress.incumbent_seconds
        said = "none yet" if best == float("inf") else format_step(best)
        bound = format_step(progress.bound_seconds)
        say(f"{progress.seconds:6.1f} s  best {said}, bound {bound}, {progress.moves} moves")
