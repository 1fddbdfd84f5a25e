"""Writes a rank's events to standard output, and ends the rank on a signal."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from placewire.job.contract.specification import Failed, RankEvent

_ENDING = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS_SECONDS = 1.0


class Events:
    """Owns standard output: what a model or a library prints goes to standard error instead.

    A rank may outlive the reader of its events; what nobody reads is dropped. So is what the model
    prints from the moment on at which its reader is gone, which is before anybody notices.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        sys.stdout.flush()
        sys.stdout, sys.stderr = _forgiving(1), _forgiving(2)
        self._lock = threading.Lock()
        self._heard = True
        self._failing = threading.Lock()
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

    def fail(self, failed: Failed, status: int = 1) -> NoReturn:
        """Ends the process from any thread, whatever the other threads wait for: also for a reader
        that is there and does not read. Therefore the event is waited for no longer than a second;
        a reader that has room gets it, however late this process gets a processor. Of several
        callers the first ends the process, and the others wait for that."""
        self._failing.acquire()
        try:
            self._say_in_time(failed.model_dump_json().encode() + b"\n")
            self.at_end()
        finally:
            os._exit(status)

    def _say_in_time(self, line: bytes) -> None:
        until = time.monotonic() + _LAST_WORDS_SECONDS
        if not self._lock.acquire(timeout=_LAST_WORDS_SECONDS):
            return
        try:
            room = select.poll()
            room.register(self._descriptor, select.POLLOUT)
            # So little is written at once that a pipe with room takes it without a wait.
            while line and self._heard and room.poll(max(0.0, until - time.monotonic()) * 1000):
                line = line[os.write(self._descriptor, line[: select.PIPE_BUF]) :]
        except BrokenPipeError:
            self._heard = False
        finally:
            self._lock.release()

    def nobody_listens(self) -> None:
        """Discards standard output and error from now on, so that no print of the model's fails."""
        self._heard = False
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nothing, descriptor)
        os.close(nothing)


class _Forgiving(io.FileIO):
    """A descriptor that takes everything, also once nobody reads it any more."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _forgiving(descriptor: int) -> io.TextIOWrapper:
    buffered = io.BufferedWriter(_Forgiving(descriptor, "w", closefd=False))
    return io.TextIOWrapper(
        buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def end_on_signals(events: Events, rank: int) -> None:
    """Lets SIGTERM and SIGINT end the rank with a Failed event, even in a wait for the network.

    Python runs a signal handler only between two instructions of the main thread, which may be
    inside gloo; therefore all threads block the signals and one thread waits for them. To be called
    before any other thread starts.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def wait() -> None:
        number = signal.sigwait(_ENDING)
        what = f"stopped by {signal.Signals(number).name}"
        events.fail(Failed(rank=rank, what=what), 128 + number)

    threading.Thread(target=wait, name="signals", daemon=True).start()
