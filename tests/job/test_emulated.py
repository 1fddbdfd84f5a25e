"""Emulated set-up in a replay: when is a message set up, and in which order?"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch

from placewire.job.errors import JobError
from placewire.job.messages.emulated_setup import TRANSPORT_SECONDS, SetUp, with_set_up
from placewire.job.messages.send_queues import InOrder, RailQueue, Waiting
from placewire.job.transport.outbox import Outbox
from tests.job.graphs import fork_and_join
from tests.job.sent_messages import MEGABYTE, Sent, message
from tests.placements import cluster_of, placement_of


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def departures(queue: RailQueue, clock: Clock) -> list[tuple[int, float]]:
    """Returns (message, seconds since the start) as they leave, looking when the queue says."""
    found = []
    start = clock.now
    while queue:
        while (part := queue.take(clock.now)) is not None:
            found.append((part.message.index, clock.now - start))
        pause = queue.seconds_until_next(clock.now)
        clock.now += pause or 0.0
    return found


def test_set_ups_overlap() -> None:
    clock = Clock()
    queue = SetUp(InOrder(), 0.002, clock=clock)
    queue.add(message(0))
    clock.now += 0.001
    queue.add(message(1))
    assert departures(queue, clock) == [(0, pytest.approx(0.001)), (1, pytest.approx(0.002))]


def test_inside_a_server_the_bytes_take_their_time_too() -> None:
    clock = Clock()
    queue = SetUp(InOrder(), 0.002, 10e6, clock)
    for parts in (message(0), message(1), message(2, device="s1/1")):
        queue.add(parts)
    # Each of the first two is carried for 0.1 s, one after the other; the third waits for neither.
    assert departures(queue, clock) == [
        (0, pytest.approx(0.102)), (2, pytest.approx(0.102)), (1, pytest.approx(0.202)),
    ]  # fmt: skip


def test_what_is_emulated_is_of_the_placement() -> None:
    """On a rail its set-up, and inside a server also the rate there."""
    graph = fork_and_join()
    devices = dict.fromkeys(graph.ids, "s1/0") | {"right": "s2/0", "idle": "s2/0"}
    cluster = cluster_of(2, ("a",), rate=160e6).model_copy(
        update={
            "setup_latency_seconds": TRANSPORT_SECONDS + 0.0005,
            "intra_server_bits_per_second": 80e6,
        }
    )
    clock = Clock()
    before = {"": InOrder(), "a": InOrder()}
    queues = with_set_up(before, placement_of(graph, cluster, devices), clock)
    for rail, second in (("a", 0.0005), ("", 0.2005)):
        queues[rail].add(message(0))
        queues[rail].add(message(1))
        left = departures(queues[rail], clock)
        assert left == [
            (0, pytest.approx(0.0005 + (second > 0.1) * 0.1)),
            (1, pytest.approx(second)),
        ]


@pytest.mark.parametrize("size", [64, MEGABYTE])
def test_a_message_still_set_up_when_the_step_ends_is_waited_for(size: int) -> None:
    """Also a small message, which no lane waits for unless asked."""
    queues: Mapping[str, RailQueue] = {"a": SetUp(InOrder(), 0.05)}
    posted: list[int] = []

    def post(part: Waiting, wire: torch.Tensor) -> Sent:
        posted.append(part.message.index)
        return Sent()

    outbox = Outbox(post, queues, lambda message, error: JobError(str(error)), lambda: None)
    (waiting,) = message(0, size)
    outbox.send(waiting.message, torch.zeros(0, dtype=torch.uint8))
    assert posted == []
    ending = threading.Thread(target=outbox.complete_all, daemon=True)
    ending.start()
    ending.join(5)
    assert posted == [0] and not ending.is_alive()
    outbox.close()
