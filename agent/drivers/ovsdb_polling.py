"""Has the Python library of Open vSwitch wait by poll().

It waits by select(), which takes no descriptor above 1023. The agent has more than that open while
it measures hundreds of rates, and must read and repair the switch all the same.
"""

from __future__ import annotations

import select
from typing import Any

import ovs.poller


class Poll:
    """Takes the place of `ovs.poller.SelectPoll`. A descriptor may be registered more than once,
    and is then waited for by all that it was registered for; select.poll would forget the first.
    """

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, descriptor: Any, events: int) -> None:
        """descriptor: a number, or what has a fileno()."""
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        self._events[number] = self._events.get(number, 0) | events

    def poll(self, timeout_milliseconds: float) -> list[tuple[int, int]]:
        """timeout_milliseconds: below 0: without end."""
        waiting = select.poll()
        for number, events in self._events.items():
            waiting.register(number, events)
        return waiting.poll(timeout_milliseconds)


def wait_by_poll() -> None:
    ovs.poller.SelectPoll = Poll
