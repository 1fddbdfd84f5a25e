"""Sees to it that this process may have as many file descriptors as its peers need."""

from __future__ import annotations

import contextlib
import resource

# A plan has at most 2000 servers. Their agents have two connections each, as many peers again may
# have shown nothing yet, and ranks, logs and the journal need some more.
WANTED = 8192


def raised_limit() -> int:
    """Raises the soft limit as far as the hard one allows; returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return WANTED
    most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
