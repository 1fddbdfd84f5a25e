"""A clock that stands still while this process does not listen.

Silence is what an agent could have broken and did not. While this process is held up (the machine
is busy, or was suspended) nobody can be heard, however often they speak.
"""

from __future__ import annotations

import asyncio
import time

_LOOK_SECONDS = 0.25
# More than this between two looks is our own pause, and says nothing about others.
_LONGEST_LOOK_SECONDS = 0.5


class ListeningClock:
    """Counts while `run` does."""

    def __init__(self) -> None:
        self._counted, self._looked = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Since it was made; never less than before."""
        passed = time.monotonic() - self._looked
        return self._counted + min(passed, _LONGEST_LOOK_SECONDS)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._counted, self._looked = self.seconds(), time.monotonic()
