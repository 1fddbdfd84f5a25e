"""The backlog in the kernel: is a part under way until its receiver has it?"""

from __future__ import annotations

import socket
import threading
import time

import pytest
import torch

from placewire.job.errors import JobError
from placewire.job.messages.send_queues import UrgentFirst, Waiting
from placewire.job.transport.outbox import Outbox
from placewire.job.transport.tcp_connections import Backlog, Drain
from tests.job.sent_messages import Sent, message

PATIENCE_SECONDS = 120
ADDRESS = "127.0.0.1"
PLACE = ("s2", "a")


def test_it_is_what_the_other_end_has_not_acknowledged() -> None:
    with socket.create_server((ADDRESS, 0)) as server:
        with socket.create_connection(server.getsockname()) as ours:
            theirs, _ = server.accept()
            backlog = Backlog({PLACE: ADDRESS}, {})
            assert backlog.unacknowledged_bytes(*PLACE) == 0
            assert backlog.held_back_bytes("s3", "a") == 3 * 1448
            assert backlog.held_back_bytes(*PLACE) == 3 * 9164, "no larger, on loopback either"
            ours.setblocking(False)
            sent = 0
            while True:  # until the kernel takes no more: the other end does not read
                try:
                    sent += ours.send(bytes(65536))
                except BlockingIOError:
                    break
            held = backlog.unacknowledged_bytes(*PLACE)
            assert 0 < held <= sent
            assert backlog.unacknowledged_bytes("s3", "a") == 0
            while held and theirs.recv(1 << 20):
                held = backlog.unacknowledged_bytes(*PLACE)
            theirs.close()


class Held(Backlog):
    """The kernel holds this much."""

    def __init__(self) -> None:
        super().__init__({}, {"a": 80e6})
        self.bytes = 50_000
        self.looks = 0

    def unacknowledged_bytes(self, server: str, rail: str) -> int:
        self.looks += 1
        return self.bytes


def test_the_next_part_leaves_when_the_receiver_has_the_one_before() -> None:
    """Here gloo says at once that a send is done."""
    posted: list[int] = []

    def post(part: Waiting, wire: torch.Tensor) -> Sent:
        posted.append(part.message.index)
        return Sent()

    # A window is two parts.
    queues = {"a": UrgentFirst(10e6, 40_000, 1_000)}
    outbox = Outbox(post, queues, lambda message, error: JobError(str(error)), lambda: None)
    outbox.backlog = held = Held()
    for index in range(3):
        (waiting,) = message(index, 40_000)
        outbox.send(waiting.message, torch.zeros(0, dtype=torch.uint8))
    until = time.monotonic() + PATIENCE_SECONDS
    while len(posted) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.05)
    assert posted == [0, 1], "the third waits"
    held.bytes = 40_000
    ending = threading.Thread(target=outbox.complete_all, daemon=True)
    ending.start()
    ending.join(PATIENCE_SECONDS)
    assert posted == [0, 1, 2] and not ending.is_alive()
    held.bytes = 0
    outbox.close()


def test_the_kernel_is_not_asked_before_the_nic_can_have_carried_it() -> None:
    held = Held()
    assert held.least_seconds("a", 10_000_000) == 1.0
    held.bytes = 10_000_000
    queues = {"a": UrgentFirst(10e6, 40_000, 1_000)}
    outbox = Outbox(
        lambda part, wire: Sent(), queues, lambda m, error: JobError(str(error)), lambda: None
    )
    outbox.backlog = held
    (waiting,) = message(0, 40_000)
    began = time.monotonic()
    outbox.send(waiting.message, torch.zeros(0, dtype=torch.uint8))
    ending = threading.Thread(target=outbox.complete_all, daemon=True)
    ending.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while not held.looks and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.3)
    # If the kernel were asked every half millisecond, there would be hundreds of looks. One look is
    # 0.95 s or more before the next, also where this thread was held up.
    looks = held.looks
    assert 1 <= looks <= 1 + (time.monotonic() - began) / 0.95
    held.bytes = 0
    ending.join(PATIENCE_SECONDS)
    assert not ending.is_alive()
    outbox.close()


def test_what_drains_at_a_share_of_the_nic_is_looked_at_when_it_can_be_gone() -> None:
    drain = Drain()
    assert drain.seconds_until_gone(100_000, 7.0) == 0, "one look tells no rate"
    assert drain.seconds_until_gone(75_000, 7.1) == pytest.approx(0.1), "as long as the looks took"
    assert drain.seconds_until_gone(25_000, 7.3) == pytest.approx(0.1)
    assert drain.seconds_until_gone(25_000, 7.5) == pytest.approx(0.5 / 3)
    stopped = Drain()
    for now_seconds in (1.0, 2.0):
        assert stopped.seconds_until_gone(50_000, now_seconds) == 0, "nothing went: no rate"
