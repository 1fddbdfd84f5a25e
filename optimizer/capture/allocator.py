"""How a process that runs a step allocates host memory: so that a step faults in no page twice.

glibc gives memory back as soon as it can, and a step asks for the same again: an AlexNet's on a CPU
faulted 20,000 pages in each, and took a tenth to a quarter longer for it on two threads. What is
mapped on its own above 2 MiB was worse, by a third. So the heap keeps what it has, and serves all
but the largest storages; these are mapped with huge pages, which torch asks for where it is told
to. What a heap keeps beyond its tensors, the profile measures.
"""

from __future__ import annotations

import ctypes
import os

# The largest that glibc takes from a heap; larger ones are mapped, and their faults are few beside
# what computing with so much takes.
MAPPED_BYTES = 32 << 20
_NEVER = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def prepare_allocator() -> None:
    """To be called before torch is loaded. What the environment says already is left as it is."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & set(os.environ):
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
