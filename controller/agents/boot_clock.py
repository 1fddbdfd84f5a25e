"""The clock by which tokens age: seconds since the boot, sleep included; nobody sets it."""

from __future__ import annotations

import time


def boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
