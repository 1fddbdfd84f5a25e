"""Names this machine's processor."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_model() -> str:
    """Returns the model name in /proc/cpuinfo, or the architecture where there is none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
