"""What a search says while it runs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from placewire.optimizer.quantities import format_step

if TYPE_CHECKING:
    from placewire.optimizer.engines.solution import Progress


class ProgressLines:
    """A line when the incumbent improves, and at least every few seconds."""

    def __init__(self) -> None:
        self._best = float("inf")
        self._said = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if progress.words:
            print(progress.words, file=sys.stderr, flush=True)
        now = time.monotonic()
        better = progress.incumbent_seconds < self._best * 0.999
        if not (better and now - self._said > 0.2) and now - self._said < 3.0:
            return
        self._best, self._said = min(self._best, progress.incumbent_seconds), now
        best = progress.incumbent_seconds
        said = "none yet" if best == float("inf") else format_step(best)
        print(
            f"{progress.seconds:6.1f} s  best {said}, bound "
            f"{format_step(progress.bound_seconds)}, {progress.moves} moves",
            file=sys.stderr,
            flush=True,
        )
