"""Finds this process's TCP connections, which gloo and NCCL do not show, and what they still send.

Linux lists descriptors in /proc; SIOCOUTQ tells how many bytes a connection was given that its peer
has not acknowledged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

# A receiver may delay the acknowledgement of a last segment or two by 40 ms.
HELD_BACK_SEGMENTS = 3
# For an MTU of 1500 bytes, and for the largest MTU that a plan's NICs have; loopback's is larger.
SEGMENT_BYTES, LARGEST_SEGMENT_BYTES = 1448, 9164


def tcp_connections() -> Iterator[tuple[int, socket.socket]]:
    """Yields (descriptor, a socket for it that is closed before the next pair)."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, or not TCP
            if entry.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as ours:
                    if ours.type == socket.SOCK_STREAM and ours.family == socket.AF_INET:
                        yield int(entry.name), ours


# The kernel's TC_PRIO_INTERACTIVE, which the queue of an unshaped NIC (pfifo_fast) sends first. The
# kernel itself takes a priority from the type of service, and packets of some types then go last.
INTERACTIVE = 6
# The ends of a connection, as (own address and port, the peer's).
Ends = tuple[tuple[str, int], tuple[str, int]]


def connected_ends() -> Iterator[tuple[Ends, socket.socket]]:
    """Yields the ends of each connected one, and its socket as tcp_connections() does."""
    for _, ours in tcp_connections():
        with contextlib.suppress(OSError):  # not connected
            yield (ours.getsockname(), ours.getpeername()), ours


def mark_answers(senders: Collection[str], dscp: int, older: Collection[Ends]) -> None:
    """Gives what this process sends on connections to these addresses a DSCP, but on older ones.

    To be called for connections on which it only receives: acknowledgements are then all that it
    sends there, so that no data can be overtaken. What is refused a mark goes without.
    """
    for ends, ours in connected_ends():
        if ends not in older and ends[1][0] in senders:
            with contextlib.suppress(OSError):
                ours.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, INTERACTIVE)


class Drain:
    """Estimates, while one part is waited for, how fast the excess bytes drain: the NIC may be
    shared, or limited for this receiver."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds_until_gone(self, left_bytes: int, now_seconds: float) -> float:
        """Extrapolates from the earlier calls: 0 where they show no rate, and never longer than
        they span together, so that a pause in the traffic is not taken for its rate."""
        if self._first is None:
            self._first = (now_seconds, left_bytes)
        began, bytes_then = self._first
        passed, gone_bytes = now_seconds - began, bytes_then - left_bytes
        return min(passed, left_bytes * passed / gone_bytes) if gone_bytes > 0 else 0.0


class Backlog:
    """Tells what this process has sent and its peers have not acknowledged, by (server, rail).

    A finished send only means that the kernel has the bytes, and the kernel takes far more than a
    NIC carries in the time that an urgent message may wait. To be made once all connections are.
    addresses: of the peers' servers on each rail. bits_per_second: of this server's NICs, by rail.
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
        """Returns 0 where no connection is known."""
        total = 0
        for descriptor in self._descriptors.get((server, rail), ()):
            with contextlib.suppress(OSError):  # closed: the peer's loss is reported elsewhere
                answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
                total += struct.unpack("i", answer)[0]
        return total

    def held_back_bytes(self, server: str, rail: str) -> int:
        """Returns how much the receiver may have without having acknowledged it yet."""
        return HELD_BACK_SEGMENTS * self._segment_bytes.get((server, rail), SEGMENT_BYTES)

    def least_seconds(self, rail: str, size_bytes: int) -> float:
        """Returns how long the NIC takes for these bytes if it carries nothing else."""
        return size_bytes * 8 / self._rates[rail]
