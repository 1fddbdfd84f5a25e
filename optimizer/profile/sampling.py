"""Decides how many steps a profile takes: as many as in the papers, or fewer where time is short.

The thesis and Celeritas discard five steps and measure the next 45 or 50.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM_UP_STEPS = 5
LEAST_WARM_UP_STEPS = 2
MOST_SAMPLES = 45
ENOUGH_SAMPLES = 9
LEAST_SAMPLES = 3
LIMIT_SECONDS = 60.0
# Of so many steps the buckets' parts are counted.
MOST_COUNTED_STEPS = 64


@dataclass(frozen=True)
class Sampling:
    """samples: the most that are taken. limit_seconds: after this time of measuring ENOUGH_SAMPLES
    suffice, and after three times as long LEAST_SAMPLES."""

    samples: int = MOST_SAMPLES
    limit_seconds: float = LIMIT_SECONDS

    def wants_warm_up(self, done: int, elapsed_seconds: float) -> bool:
        if done < LEAST_WARM_UP_STEPS:
            return True
        return done < WARM_UP_STEPS and elapsed_seconds < self.limit_seconds / 4

    def wants_sample(self, taken: int, elapsed_seconds: float) -> bool:
        """elapsed_seconds: since the begin of the warm-up."""
        if taken >= self.samples:
            return False
        if elapsed_seconds >= 3 * self.limit_seconds:
            return taken < LEAST_SAMPLES
        return elapsed_seconds < self.limit_seconds or taken < ENOUGH_SAMPLES
