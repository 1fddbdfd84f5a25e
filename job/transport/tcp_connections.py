"""This process's TCP connections, whoever made them: gloo and NCCL show theirs to nobody.

Linux: descriptors from /proc, and SIOCOUTQ for what a connection was given and its peer has not
acknowledged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path


def tcp_connections() -> Iterator[tuple[int, socket.socket]]:
    """(descriptor, the same as a socket that is closed before the next is given)"""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, or no TCP
            if entry.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as ours:
                    if ours.type == socket.SOCK_STREAM and ours.family == socket.AF_INET:
                        yield int(entry.name), ours


# A receiver may keep back the acknowledgement of a last segment or two for 40 ms.
HELD_BACK_SEGMENTS = 3
# Of an MTU of 1500 bytes, and of the largest that a plan's NICs have; loopback's are larger yet.
SEGMENT_BYTES, LARGEST_SEGMENT_BYTES = 1448, 9164


class Drain:
    """How fast what was too much becomes less, while one part is waited for: its NIC may be shared,
    or limited for this receiver."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds_until_gone(self, left_bytes: int, now_seconds: float) -> float:
        """As far as the looks before this one tell: 0 where they do not, and never longer than all
        of them took, so that a pause in the traffic is not taken for its rate."""
        if self._first is None:
            self._first = (now_seconds, left_bytes)
        began, bytes_then = self._first
        passed, gone_bytes = now_seconds - began, bytes_then - left_bytes
        return min(passed, left_bytes * passed / gone_bytes) if gone_bytes > 0 else 0.0


class Backlog:
    """What this process has sent and its peers have not acknowledged, by (server, rail).

    That a send is done means that the kernel has the bytes; it takes far more than a NIC carries in
    the time that an urgent message may wait. addresses: of the peers' servers on each rail, once
    all connections are made. bits_per_second: of this server's NIC on each rail.
    """

    def __init__(
        self, addresses: Mapping[tuple[str, str], str], bits_per_second: Mapping[str, float]
    ) -> None:
        self._rates = bits_per_second
        place = {address: key for key, address in addresses.items()}
        self._descriptors: dict[tuple[str, str], list[int]] = {}
        self._segment_bytes: dict[tuple[str, str], int] = {}
        for descriptor, ours in tcp_connections():
            with contextlib.suppress(OSError):  # not connected
                key = place.get(ours.getpeername()[0])
                if key is not None:
                    self._descriptors.setdefault(key, []).append(descriptor)
                    segment_bytes = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                    self._segment_bytes[key] = min(segment_bytes, LARGEST_SEGMENT_BYTES)

    def unacknowledged_bytes(self, server: str, rail: str) -> int:
        """0 where nothing is known."""
        total = 0
        for descriptor in self._descriptors.get((server, rail), ()):
            with contextlib.suppress(
                OSError
            ):  # closed: then the loss of the peer is told elsewhere
                answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
                total += struct.unpack("i", answer)[0]
        return total

    def held_back_bytes(self, server: str, rail: str) -> int:
        """What may be with the receiver, and not acknowledged yet."""
        return HELD_BACK_SEGMENTS * self._segment_bytes.get((server, rail), SEGMENT_BYTES)

    def least_seconds(self, rail: str, size_bytes: int) -> float:
        """What the NIC takes for so many bytes if it carries nothing else."""
        return size_bytes * 8 / self._rates[rail]
