"""How a process that runs a step allocates host memory: so that it holds what it was predicted to.

glibc answers requests of up to 32 MiB from one heap, and what is freed inside it stays with the
process: an AlexNet's step took a quarter more than its tensors. So what is larger than 2 MiB is
mapped on its own and given back at once. New memory is dear, a fault for every page; with huge
pages, which torch asks for where it is told to, there are 512 times fewer.
"""

from __future__ import annotations

import ctypes
import os

MAPPED_BYTES = 2 << 20
_M_MMAP_THRESHOLD = -3  # <malloc.h>


def prepare_allocator() -> None:
    """To be called before torch is loaded. What the environment says already is left as it is."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
