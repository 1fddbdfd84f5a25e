"""Keeps Python's collector of reference cycles away while millions of objects are made and kept.

It looks at all of them again and again: it took a third of the time in which a graph of 220,000
operators is read, more when such a graph is checked, and an eighth of a capture's.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pause:
    """users: how many threads' blocks pause the collector; was_on: before the first of them."""

    def __init__(self) -> None:
        self._lock, self._users, self._was_on = threading.Lock(), 0, True

    def begin(self) -> None:
        with self._lock:
            if self._users == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._users += 1

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was_on:
                gc.enable()


_PAUSE = _Pause()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Also usable as a decorator. The collector is as it was before once no thread pauses it any
    more. The pause is the whole process's, so that it suits only work that makes no large tensors
    in cycles."""
    _PAUSE.begin()
    try:
        yield
    finally:
        _PAUSE.end()
