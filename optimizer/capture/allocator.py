"""How a process that runs a step allocates host memory: so that a step faults in no page twice.

glibc gives memory back as soon as it can, and a step asks for the same again: an AlexNet's on a CPU
faulted 20,000 pages in each, and took a tenth to a quarter longer for it on two threads. What is
mapped on its own was worse, by a third, and two ranks on one machine hinder each other most in
having new pages zeroed. So nothing is mapped, and the heap keeps what it has, with huge pages,
which torch asks for where it is told to. What a heap keeps beyond its tensors, profiles measure.
"""

from __future__ import annotations

import ctypes
import os

_NEVER = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_SAID = {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}


def prepare_allocator() -> None:
    """To be called before torch is loaded. What the environment says already is left as it is."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _SAID & set(os.environ):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
