"""Sees to it that this process may have as many file descriptors as its work needs.

Programs that it starts get the same limit.
"""

from __future__ import annotations

import contextlib
import resource


def raised_limit(wanted: int) -> int:
    """Raises the soft limit to so many, as far as the hard one allows; returns what it is now, or
    `wanted` where there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
