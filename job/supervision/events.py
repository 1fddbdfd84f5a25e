"""What a rank says: JSON lines on standard output; and how it ends when told to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

from placewire.job.contract.specification import Failed, RankEvent

_ENDING = (signal.SIGTERM, signal.SIGINT)


class Events:
    """Owns standard output: whatever else prints there (a model, a library) goes to stderr.

    A rank outlives whoever reads it, for as long as it may: what nobody reads is dropped.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._heard = True
        # What is to be cleared up before this process ends itself.
        self.at_end: Callable[[], None] = lambda: None

    def emit(self, event: RankEvent) -> None:
        self.say(event.model_dump_json().encode() + b"\n")

    def say(self, line: bytes) -> None:
        """A whole line that is no event: what a process of a script printed."""
        with self._lock:
            try:
                while line and self._heard:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                self._heard = False

    def exit(self, status: int) -> NoReturn:
        """From whatever thread, and whatever the others wait for."""
        try:
            self.at_end()
        finally:
            os._exit(status)

    def nobody_listens(self) -> None:
        """The other ends of standard output and error are closed: a print of the model's must not
        fail because of it."""
        self._heard = False
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nothing, descriptor)
        os.close(nothing)


def end_on_signals(events: Events, rank: int) -> None:
    """A signal ends the rank with a Failed event, even while it waits for the network.

    Python runs a signal's handler only between two instructions of its main thread, which may be
    inside gloo; so the signals are blocked everywhere and a thread waits for them. To be called
    before any other thread starts.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def wait() -> None:
        number = signal.sigwait(_ENDING)
        events.emit(Failed(rank=rank, what=f"stopped by {signal.Signals(number).name}"))
        events.exit(128 + number)

    threading.Thread(target=wait, name="signals", daemon=True).start()
