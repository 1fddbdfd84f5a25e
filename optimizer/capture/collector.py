"""Python's cyclic garbage collector, out of the way while a step is captured."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """A capture makes objects by the million and keeps most of them, so that each collection walks
    through all and frees next to none: an eighth of the time. As it was afterwards, whatever comes.

    Of the whole process, so it is for work that makes no large tensors in cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
