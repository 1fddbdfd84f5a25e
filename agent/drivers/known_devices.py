"""Keeps which devices were found last, and asks NVIDIA's driver anew beside everything else.

A driver that nobody has used takes seconds for each GPU, and one that hangs says nothing. A hello
waits a moment for the answer, and no longer: what the controller has to say may be an undo.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from placewire.agent.drivers.devices import Found, devices, processor

log = logging.getLogger(__name__)

# A driver in use answers sooner.
ANSWER_SECONDS = 1.0
# A hello within so long after an answer does not ask again: news bring a hello at once.
FRESH_SECONDS = 1.0


class KnownDevices:
    """find: asks the driver, however long that takes. Methods may be called in any thread."""

    def __init__(self, find: Callable[[], Found] = devices) -> None:
        self._find = find
        self._notice: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        # Whether the last question was answered, and until when a hello waits for the answer.
        self._answered = threading.Event()
        self._wait_until = 0.0
        self._asks = False
        self._fresh_until = 0.0
        self._found: Found | None = None
        # The devices that the last hello told; none before the first.
        self._told: tuple[Found | None, ...] = ()

    def follow(self, notice: Callable[[], None]) -> None:
        """notice: called, in another thread, when the devices are others than those told last."""
        self._notice = notice

    def ask(self) -> None:
        """Begins to ask the driver, unless somebody does or has just done so; does not wait."""
        with self._lock:
            now = time.monotonic()
            if self._asks or now < self._fresh_until:
                return
            self._asks, self._answered = True, threading.Event()
            self._wait_until = now + ANSWER_SECONDS
        # A daemon ends without waiting for this thread.
        threading.Thread(target=self._look, name="devices", daemon=True).start()

    def known(self) -> Found | None:
        """Has the driver asked, waits until at most ANSWER_SECONDS after that, and returns what was
        found last. None: the driver has not answered yet."""
        self.ask()
        with self._lock:
            answered, until = self._answered, self._wait_until
        answered.wait(max(0.0, until - time.monotonic()))
        with self._lock:
            self._told = (self._found,)
            return self._found

    def _look(self) -> None:
        try:
            found = self._find()
        except Exception as error:
            log.exception("the server's devices could not be looked for")
            found = Found((processor(),), f"looking for them failed: {error}")
        with self._lock:
            self._found, self._asks = found, False
            self._fresh_until = time.monotonic() + FRESH_SECONDS
            is_news = self._told not in ((), (found,))
            self._answered.set()
        if is_news:
            self._notice()
