"""Limits how long a server may take to answer over SSH.

paramiko's own limits are for single waits, and some of its waits have none. A server whose sshd is
frozen, or whose user's shell never comes to the command, still has a kernel that acknowledges what
it gets. Therefore a question closes its connection when its time is over, which ends every wait.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Patience:
    """To be used in a `with`, in which one question is asked. seconds: for the whole of it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_over = False
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = self._new_timer()

    def __enter__(self) -> Patience:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def counts_anew(self) -> None:
        """Gives the server all the time from now on, where until now it was asked nothing."""
        with self._lock:
            if not self.is_over:
                self._timer.cancel()
                self._timer = self._new_timer()
                self._timer.start()

    def covers(self, connection: socket.socket) -> None:
        """Has this connection closed when time is over."""
        with self._lock:
            self._connections.append(connection)
            if self.is_over:
                _cut(connection)

    def _new_timer(self) -> threading.Timer:
        timer = threading.Timer(self.seconds, self._end)
        timer.daemon = True
        return timer

    def _end(self) -> None:
        with self._lock:
            if threading.current_thread() is not self._timer:
                return  # It was cancelled when it was over already.
            self.is_over = True
            for connection in self._connections:
                _cut(connection)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it was closed already
        connection.shutdown(socket.SHUT_RDWR)
