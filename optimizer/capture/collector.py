"""Pauses Python's cyclic garbage collector while a step is captured."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Disables the collector and restores its former state at the end, also after an error.

    A capture makes millions of objects and keeps most of them: collections would take an eighth of
    its time and free next to nothing. The pause applies to the whole process, so that it suits only
    work that makes no large tensors in cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
