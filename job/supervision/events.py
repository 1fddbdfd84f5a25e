"""Writes a rank's events to standard output, and ends the rank on a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

from placewire.job.contract.specification import Failed, RankEvent

_ENDING = (signal.SIGTERM, signal.SIGINT)


class Events:
    """Owns standard output: what a model or a library prints goes to standard error instead.

    A rank may outlive the reader of its events; what nobody reads is dropped.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._heard = True
        # Called before this process ends itself.
        self.at_end: Callable[[], None] = lambda: None

    def emit(self, event: RankEvent) -> None:
        self.say(event.model_dump_json().encode() + b"\n")

    def say(self, line: bytes) -> None:
        """line: a whole line, which need not be an event: a process of a script may print it."""
        with self._lock:
            try:
                while line and self._heard:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                self._heard = False

    def exit(self, status: int) -> NoReturn:
        """Ends the process from any thread, whatever the other threads wait for."""
        try:
            self.at_end()
        finally:
            os._exit(status)

    def nobody_listens(self) -> None:
        """Discards standard output and error from now on, so that no print of the model's fails."""
        self._heard = False
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nothing, descriptor)
        os.close(nothing)


def end_on_signals(events: Events, rank: int) -> None:
    """Lets SIGTERM and SIGINT end the rank with a Failed event, even in a wait for the network.

    Python runs a signal handler only between two instructions of the main thread, which may be
    inside gloo; therefore all threads block the signals and one thread waits for them. To be called
    before any other thread starts.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def wait() -> None:
        number = signal.sigwait(_ENDING)
        events.emit(Failed(rank=rank, what=f"stopped by {signal.Signals(number).name}"))
        events.exit(128 + number)

    threading.Thread(target=wait, name="signals", daemon=True).start()
