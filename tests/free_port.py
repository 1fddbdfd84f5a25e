"""A TCP port that a test can listen at a moment later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path


def free_port() -> int:
    """Returns a port that is still free when a program has started: below those that the kernel
    gives to whoever asks for any, and drawn without the seed that other tests share."""
    lowest_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, max(lowest_of_kernel, 20_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
