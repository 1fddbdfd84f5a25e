"""The time limit of an engine, which the engine checks inside its loops."""

from __future__ import annotations

import time
from dataclasses import dataclass

from placewire.optimizer.engines.refusals import OutOfTimeError
from placewire.optimizer.problem import SolveSettings


@dataclass(frozen=True)
class Deadline:
    """until: when the time ends, as time.monotonic() counts."""

    engine: str
    until: float

    @property
    def left_seconds(self) -> float:
        """Never negative."""
        return max(self.until - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until

    def require(self, doing: str, k: int = 0) -> None:
        """Raises OutOfTimeError where the time is over; for methods without a partial result. In
        round k of a loop, which may be short, the clock is read in every 256th round only."""
        if k % 256 == 0 and self.is_over:
            raise self.over(doing)

    def over(self, doing: str) -> OutOfTimeError:
        return OutOfTimeError(
            f"{self.engine} ran out of time in {doing}; allow more (--time-limit), reduce the "
            "graph, or use engine auto"
        )


def deadline(engine: str, settings: SolveSettings) -> Deadline:
    """The settings' time limit, from now on."""
    return Deadline(engine, time.monotonic() + settings.time_limit_seconds)
