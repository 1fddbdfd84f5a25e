"""Ten ICMP echo requests a second, from the peer of a server under test, until told to end."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import struct
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import NamedTuple

from tests.agent.server_under_test import ServerUnderTest, enter_namespace

INTERVAL_SECONDS = 0.1
# A request sent later than this before the end may still be under way, and does not count.
ON_ITS_WAY_SECONDS = 0.3
_ECHO_REPLY, _ECHO_REQUEST = 0, 8


class Answered(NamedTuple):
    """gap_seconds: the longest time between two answers."""

    sent: int
    lost: int
    gap_seconds: float


class Probe:
    def __init__(self, server: ServerUnderTest, address: str) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_probe, args=(server.peer, address, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def end(self) -> Answered:
        self._pipe.send(None)
        try:
            sent, answered, ended = self._pipe.recv()
        finally:
            self._process.join(5)
            self._process.kill()
            self._pipe.close()
        until = ended - ON_ITS_WAY_SECONDS
        counted = [number for number, when in sent.items() if when < until]
        gaps = [later - before for before, later in pairwise(sorted(answered.values()))]
        lost = sum(number not in answered for number in counted)
        return Answered(len(counted), lost, max(gaps, default=0.0))


def _probe(namespace: str, address: str, pipe: Connection) -> None:
    """Sends back when each request was sent and answered, by its number, and when it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter_namespace(namespace)
    sent: dict[int, float] = {}
    answered: dict[int, float] = {}
    identifier = os.getpid() & 0xFFFF
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        due = time.monotonic()
        while not pipe.poll():
            if time.monotonic() >= due:
                due += INTERVAL_SECONDS
                sent[len(sent)] = time.monotonic()
                _send(raw, address, identifier, len(sent) - 1)
            raw.settimeout(max(0.001, due - time.monotonic()))
            number = _receive(raw, address, identifier)
            if number is not None:
                answered.setdefault(number, time.monotonic())
        ended = time.monotonic()
        # What came while this process was held up.
        while select.select([raw], [], [], 0)[0]:
            if (number := _receive(raw, address, identifier)) is not None:
                answered.setdefault(number, time.monotonic())
    pipe.send((sent, answered, ended))
    os._exit(0)


def _send(raw: socket.socket, address: str, identifier: int, number: int) -> None:
    header = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, identifier, number)
    total = sum(struct.unpack("!4H", header))
    checksum = ~(total + (total >> 16)) & 0xFFFF
    try:
        raw.sendto(header[:2] + struct.pack("!H", checksum) + header[4:], (address, 0))
    except OSError:
        return  # There is no route: the packet is lost.


def _receive(raw: socket.socket, address: str, identifier: int) -> int | None:
    """The number of the request that was answered; of ours only."""
    try:
        packet, (source, _) = raw.recvfrom(256)
    except OSError:
        return None
    kind, _, _, whose, number = struct.unpack_from("!BBHHH", packet, (packet[0] & 15) * 4)
    ours = (kind, whose, source) == (_ECHO_REPLY, identifier, address)
    return int(number) if ours else None
