"""The outbox over a simulated network: who waits for whom, and what does a failure end?"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator

import pytest
import torch

import placewire.job.transport.outbox
from placewire.job.errors import JobError
from placewire.job.messages.cutting import Part
from placewire.job.messages.rank_messages import RankMessage
from placewire.job.messages.send_queues import InOrder, RailQueue, UrgentFirst, Waiting
from placewire.job.transport.outbox import Outbox
from placewire.job.transport.transport import lost

PATIENCE_SECONDS = 120


class Handed:
    """A handed-over part that leaves when the test says so."""

    def __init__(self, part: Waiting, over: bool) -> None:
        self.part = part
        self.over = threading.Event()
        if over:
            self.over.set()
        self.error: RuntimeError | None = None

    def wait(self) -> bool:
        assert self.over.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        return True


class Network:
    def __init__(self) -> None:
        self.handed: list[Handed] = []
        self.changed = threading.Condition()
        self.lost = threading.Event()
        self.all_over = False

    def post(self, part: Waiting, wire: torch.Tensor) -> Handed:
        assert wire.numel() == part.message.bytes
        with self.changed:
            self.handed.append(Handed(part, self.all_over))
            self.changed.notify_all()
            return self.handed[-1]

    def end(self) -> None:
        """Lets everything leave, also what is handed over from now on."""
        with self.changed:
            self.all_over = True
            for handed in self.handed:
                handed.over.set()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.handed) >= count, PATIENCE_SECONDS)

    @property
    def tags(self) -> list[int]:
        return [handed.part.part.tag for handed in self.handed]


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def outbox(network: Network) -> Iterator[Outbox]:
    queues: dict[str, RailQueue] = {"a": UrgentFirst(1e6, 100, 3), "": InOrder()}
    made = Outbox(network.post, queues, lost, network.lost.set)
    yield made
    network.end()
    made.close()


def message(index: int, rank: int, chunks: int, rail: str = "a") -> RankMessage:
    parts = tuple(Part(0, 10 * index + n, 100 * n, 100 * (n + 1)) for n in range(chunks))
    size = 100 * chunks
    return RankMessage(index, "p", 0, size, 1, "s2/0", True, parts, (rail,) * chunks, rank)


def send(outbox: Outbox, what: RankMessage) -> None:
    outbox.send(what, torch.zeros(what.bytes, dtype=torch.uint8))


def test_a_window_is_kept_and_urgency_rules_behind_it(network: Network, outbox: Outbox) -> None:
    send(outbox, message(0, 5, 4))
    send(outbox, message(1, 1, 1))
    assert network.tags == [0, 1]
    network.handed[0].over.set()
    network.wait_for(3)
    network.handed[1].over.set()
    network.wait_for(4)
    assert network.tags == [0, 1, 10, 2]


def test_what_has_left_is_let_go() -> None:
    """The next step needs its memory."""

    class Sent:
        def __init__(self, wire: torch.Tensor) -> None:
            self.wire = wire

        def wait(self) -> bool:
            return True

    outbox = Outbox(lambda part, wire: Sent(wire), {"a": InOrder()}, lost, lambda: None)
    wire = torch.zeros(100, dtype=torch.uint8)
    alive = weakref.ref(wire)
    outbox.send(message(0, 1, 1), wire)
    del wire
    outbox.complete_all()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while alive() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alive() is None
    outbox.close()


def test_completion_is_of_the_whole_message(network: Network, outbox: Outbox) -> None:
    ours = message(0, 1, 3)
    send(outbox, ours)
    completed = threading.Event()

    def complete() -> None:
        outbox.complete(ours)
        completed.set()

    thread = threading.Thread(target=complete)
    thread.start()
    for number in range(3):
        assert not completed.is_set()
        network.wait_for(number + 1)
        network.handed[number].over.set()
    assert completed.wait(PATIENCE_SECONDS)
    thread.join()
    outbox.complete_all()


def test_a_failed_send_is_told_to_whoever_waits_and_to_the_transport(
    network: Network, outbox: Outbox
) -> None:
    ours = message(0, 1, 1)
    send(outbox, ours)
    network.handed[0].error = RuntimeError("[pair.cc:1] Connection closed by peer")
    network.handed[0].over.set()
    with pytest.raises(JobError, match=r"'p' to or from s2/0: Connection closed by peer"):
        outbox.complete(ours)
    assert network.lost.wait(PATIENCE_SECONDS)
    with pytest.raises(JobError, match="Connection closed"):
        send(outbox, message(1, 1, 1))


def test_a_send_that_cannot_begin_fails_at_once(outbox: Outbox, network: Network) -> None:
    def refuse(part: Waiting, wire: torch.Tensor) -> Handed:
        raise RuntimeError("no connection")

    queues: dict[str, RailQueue] = {"a": InOrder()}
    broken = Outbox(refuse, queues, lost, network.lost.set)
    with pytest.raises(JobError, match="no connection"):
        send(broken, message(0, 1, 1))


class Clock:
    """Replaces the module `time`, and stands still until the test says so."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


def test_what_waits_for_tokens_leaves_when_its_time_has_come(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else happens, so that only the clock makes room."""
    clock = Clock()
    monkeypatch.setattr(placewire.job.transport.outbox, "time", clock)
    outbox = Outbox(network.post, {"a": UrgentFirst(2000.0, 100, 3)}, lost, network.lost.set)
    send(outbox, message(0, 1, 2))
    other = RankMessage(1, "q", 0, 100, 2, "s3/0", True, (Part(0, 77, 0, 100),), ("a",), 2)
    send(outbox, other)
    clock.now += 0.099
    send(outbox, message(2, 3, 1))
    assert network.tags == [0, 1]
    clock.now += 0.002
    network.wait_for(3)
    assert network.tags == [0, 1, 77]
    network.end()
    outbox.complete_all()
    outbox.close()


def test_values_are_let_go_when_their_message_has_left(network: Network, outbox: Outbox) -> None:
    wire = torch.zeros(100, dtype=torch.uint8)
    wires = torch.utils.weak.WeakTensorKeyDictionary({wire: 1})
    ours = message(0, 1, 1)
    outbox.send(ours, wire)
    network.handed[0].over.set()
    outbox.complete(ours)
    del wire
    assert len(wires) == 0


def test_whoever_waits_for_all_sees_what_leaves_late_too(network: Network) -> None:
    """The last part is small and leaves only when somebody already waits."""
    outbox = Outbox(network.post, {"a": UrgentFirst(1.0, 1 << 20, 1 << 15)}, lost, network.lost.set)
    half = 1 << 20
    bulk = (Part(0, 0, 0, half), Part(0, 1, half, 2 * half))
    send(outbox, RankMessage(0, "p", 0, 2 * half, 1, "s2/0", True, bulk, ("a", "a"), 1))
    send(outbox, RankMessage(1, "q", 0, 100, 2, "s3/0", True, (Part(0, 2, 0, 100),), ("a",), 2))
    waiting = threading.Thread(target=outbox.complete_all, daemon=True)
    waiting.start()
    assert network.tags == [0, 1]
    network.end()
    waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive()
    outbox.close()
