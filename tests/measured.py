"""Figures of a machine that others use too: what is wrong stays wrong, a moment's lack does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

ATTEMPTS = 6
PAUSE_SECONDS = 1.0

Figure = TypeVar("Figure")


def until(right: Callable[[Figure], bool], measure: Callable[[], Figure]) -> Figure:
    """The first figure that is right, else the last; as the controller measures again what was
    missed."""
    for _ in range(ATTEMPTS - 1):
        figure = measure()
        if right(figure):
            return figure
        time.sleep(PAUSE_SECONDS)
    return measure()
