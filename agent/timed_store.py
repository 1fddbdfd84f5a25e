"""A store that is waited for only so long: a disk that hangs must not hold an undo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from placewire.agent.reconcile.effects import Store
from placewire.agent.reconcile.lease import Kept

# A disk that is busy has synced by then. The shortest lease (30 s) then still ends in time.
DISK_SECONDS = 8.0


class TimedStore:
    """Implements placewire.agent.reconcile.effects.Store over another one, whose file system may be
    frozen, or on a server that is away: what writes there waits in the kernel, and nothing can end
    that.

    One write at a time. One that takes longer than `seconds` fails, and may be there later all the
    same, as it goes on; until it has ended, every other one fails at once. So a later write is
    never overwritten by an earlier one.
    """

    def __init__(self, store: Store, seconds: float = DISK_SECONDS) -> None:
        self._store, self._seconds = store, seconds
        self._changed = threading.Condition()
        # When the write under way began, by time.monotonic; None: there is none.
        self._began: float | None = None

    def load(self) -> Kept:
        return self._store.load()

    def save(self, kept: Kept) -> None:
        """Raises OSError."""
        self._write(lambda: self._store.save(kept))

    def audit(self, records: Sequence[dict[str, Any]]) -> None:
        """Raises OSError."""
        self._write(lambda: self._store.audit(records))

    def _write(self, write: Callable[[], None]) -> None:
        ended: list[BaseException | None] = []

        def run() -> None:
            error: BaseException | None = None
            try:
                write()
            except BaseException as raised:
                error = raised
            with self._changed:
                ended.append(error)
                self._began = None
                self._changed.notify_all()

        with self._changed:
            while self._began is not None:
                left = self._began + self._seconds - time.monotonic()
                if left <= 0:
                    raise self._late()
                self._changed.wait(left)
            self._began = time.monotonic()
            try:
                # A daemon, so that an agent that is told to end does not wait for it either.
                threading.Thread(target=run, name="disk", daemon=True).start()
            except RuntimeError as error:  # The system gives no more threads.
                self._began = None
                raise OSError(f"nothing can write to the disk: {error}") from error
            if not self._changed.wait_for(lambda: ended, self._seconds):
                raise self._late()
        if ended[0] is not None:
            raise ended[0]

    def _late(self) -> TimeoutError:
        return TimeoutError(
            f"the disk has not answered for {self._seconds:g} s (its file system is frozen, or a "
            "server that it is on is away)"
        )
