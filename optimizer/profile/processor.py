"""Which processor this is."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_model() -> str:
    """As /proc/cpuinfo names it, or the architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
