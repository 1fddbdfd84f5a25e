"""What is left of a command's time limit: what it read and loaded before counts, too."""

from __future__ import annotations

import time

# A search has at least this part of the limit, however long reading took.
_LEAST_PART = 0.5


def time_left(limit_seconds: float, began: float) -> float:
    """Seconds; began: when the command did, by time.monotonic()."""
    spent = time.monotonic() - began
    return max(limit_seconds - spent, _LEAST_PART * limit_seconds)
