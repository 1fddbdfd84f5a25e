"""Configures how a process that runs steps allocates host memory, so that no page is faulted twice.

glibc gives memory back as soon as it can, and the next step asks for it again: each step of an
AlexNet on a CPU faulted in 20,000 pages and took a tenth to a quarter longer for it on two threads.
Blocks that glibc maps separately made it worse, by a third, and two ranks on one machine hinder
each other most while new pages are zeroed. Therefore no block is mapped separately, the heap keeps
what it has, and torch is told to ask for huge pages. What a heap keeps beyond its tensors is part
of what profiles measure.
"""

from __future__ import annotations

import ctypes
import os

_NEVER = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_SAID = {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}


def prepare_allocator() -> None:
    """To be called before torch is loaded. Settings of the environment take precedence."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _SAID & set(os.environ):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
