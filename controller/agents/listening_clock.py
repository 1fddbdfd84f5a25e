"""A clock that stands still while this process is held up and cannot listen.

An agent counts as silent only for time in which the controller could have heard it. While this
process is held up (the machine is busy, or was suspended) it hears no agent.
"""

from __future__ import annotations

import asyncio
import time

_LOOK_SECONDS = 0.25
# A longer time between two looks means that this process was held up: the excess does not count.
_LONGEST_LOOK_SECONDS = 0.5


class ListeningClock:
    """Counts time while `run` runs."""

    def __init__(self) -> None:
        self._counted, self._looked = 0.0, time.monotonic()

    def seconds(self) -> float:
        """The time that this process could listen, since the clock was made; it never decreases."""
        passed = time.monotonic() - self._looked
        return self._counted + min(passed, _LONGEST_LOOK_SECONDS)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._counted, self._looked = self.seconds(), time.monotonic()
