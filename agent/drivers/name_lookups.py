"""Asks name servers for addresses without waiting for a slow one for long."""

from __future__ import annotations

import socket
from threading import Lock, Thread
from typing import Any, NamedTuple


class Place(NamedTuple):
    """As socket.getaddrinfo tells it, for socket.socket and its connect."""

    family: int
    kind: int
    address: Any


class NameLookups:
    """Keeps what each name had at last. Any thread may use it; one lookup at a time asks for a
    host and port, whoever waits for it."""

    def __init__(self) -> None:
        self._lock = Lock()  # Guards _asking.
        self._asking: dict[tuple[str, int], Thread] = {}
        self._known: dict[tuple[str, int], tuple[Place, ...]] = {}

    def places(self, host: str, port: int, wait_seconds: float) -> tuple[Place, ...]:
        """Asks anew, and waits for the answer for that long. An answer that comes later is for the
        next call: where no answer comes in time, or no name server has one, what was known before
        still holds. Empty where the name is not known."""
        key = host, port
        with self._lock:
            asking = self._asking.get(key)
            if asking is None or not asking.is_alive():
                # A daemon's thread: nobody waits for it at the end of this process.
                asking = Thread(target=self._ask, args=key, daemon=True)
                asking.start()
                self._asking[key] = asking
        asking.join(wait_seconds)
        return self._known.get(key, ())

    def _ask(self, host: str, port: int) -> None:
        found: tuple[Place, ...] = ()
        try:
            told = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            found = tuple(Place(family, kind, address) for family, kind, _, _, address in told)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:  # No name server answers.
                return
        except (OSError, UnicodeError):
            pass
        self._known[host, port] = found
