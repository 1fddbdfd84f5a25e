"""The clock by which tokens age, leases run out and stages are timed: seconds since the boot, the
time included in which this machine slept; nobody sets it."""

from __future__ import annotations

import time


def boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
