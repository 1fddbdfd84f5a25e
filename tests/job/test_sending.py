"""Send order: does the most urgent part leave first, and is the NIC never idle needlessly?

A small model of a NIC and its receivers stands in for gloo and the kernel: what a queue hands over
is carried in the order in which it was handed over, per receiver, at the rates that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from placewire.job.messages.cutting import Part
from placewire.job.messages.rank_messages import RankMessage, rank_messages
from placewire.job.messages.send_queues import InOrder, RailQueue, UrgentFirst, Waiting, queues_for
from placewire.optimizer.chunks import (
    CHUNK_SECONDS,
    LEAST_CHUNK_BYTES,
    chunk_bytes,
    window_bytes,
)
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from tests.placements import cluster_of, placement_of

CHUNK = 1000
RATE = 1000.0  # bytes a second: a chunk takes one second on the whole NIC
LOW_WATER = 33  # as much of a chunk as below 1.4 Gbit/s


def message(index: int, rank: int, chunks: int, server: str = "s2") -> list[Waiting]:
    parts = tuple(
        Part(0, 100 * index + n, n * CHUNK, (n + 1) * CHUNK) for n in range(max(chunks, 1))
    )
    whole = RankMessage(
        index, "p", 0, chunks * CHUNK, 1, f"{server}/0", True, parts, ("a",) * len(parts), rank
    )
    return [Waiting(whole, part) for part in parts]


@dataclass
class Wire:
    """A NIC of RATE and what each receiver takes at most; first come, first served per receiver,
    receivers share the NIC equally."""

    queue: RailQueue
    takes: Mapping[str, float] = field(default_factory=dict)
    now: float = 0.0
    under_way: dict[str, list[tuple[Waiting, float]]] = field(default_factory=dict)
    finished: list[tuple[float, Waiting]] = field(default_factory=list)

    def run(self, until: float) -> None:
        tick = 0.01
        while self.now < until:
            while (part := self.queue.take(self.now)) is not None:
                lane = self.under_way.setdefault(part.receiver, [])
                lane.append((part, float(part.part.bytes)))
            self.now += tick
            for receiver, rate in self._rates().items():
                self._carry(receiver, rate * tick)

    def _rates(self) -> dict[str, float]:
        """Returns max-min fair rates: what a receiver does not take is left to the others."""
        left, rates = RATE, dict[str, float]()
        busy = sorted(self.under_way, key=lambda r: self.takes.get(r, RATE))
        for n, receiver in enumerate(busy):
            rates[receiver] = min(left / (len(busy) - n), self.takes.get(receiver, RATE))
            left -= rates[receiver]
        return rates

    def _carry(self, receiver: str, size: float) -> None:
        lane = self.under_way[receiver]
        while lane and size > 0:
            part, rest = lane[0]
            moved = min(rest, size)
            size -= moved
            lane[0] = (part, rest - moved)
            if rest - moved < 1e-9:
                lane.pop(0)
                self.queue.left(part, self.now)
                self.finished.append((self.now, part))
        if not lane:
            del self.under_way[receiver]

    def end_of(self, index: int) -> float:
        return max(when for when, part in self.finished if part.message.index == index)


def urgent_first() -> UrgentFirst:
    return UrgentFirst(RATE, CHUNK, LOW_WATER)


def test_program_order_hands_everything_over_at_once() -> None:
    queue = InOrder()
    queue.add(message(0, 5, 2))
    queue.add(message(1, 1, 1))
    taken = [queue.take(0.0) for _ in range(4)]
    assert [p and (p.message.index, p.part.tag) for p in taken] == [(0, 0), (0, 1), (1, 100), None]


@pytest.mark.parametrize("server", ["s2", "s3"])
def test_an_urgent_message_waits_for_a_window_at_most(server: str) -> None:
    wire = Wire(urgent_first())
    wire.queue.add(message(0, 5, 20))
    wire.run(5.5)
    wire.queue.add(message(1, 1, 1, server))
    wire.run(30)
    # To the same receiver behind the two chunks under way; to another beside them.
    assert wire.end_of(1) <= 5.5 + 3.1
    assert wire.end_of(0) == pytest.approx(21, abs=0.1)


def test_the_less_urgent_of_two_bulks_stands_back() -> None:
    wire = Wire(urgent_first())
    wire.queue.add(message(0, 5, 10, "s2"))
    wire.queue.add(message(1, 1, 10, "s3"))
    wire.run(40)
    # With equal shares both would end at 19 to 20.
    assert wire.end_of(1) <= 12.5
    assert wire.end_of(0) == pytest.approx(20, abs=0.2)


def test_what_a_receiver_cannot_take_goes_to_another() -> None:
    wire = Wire(urgent_first(), {"s3": 0.3 * RATE})
    wire.queue.add(message(0, 5, 14, "s2"))
    wire.queue.add(message(1, 1, 6, "s3"))
    wire.run(60)
    # The urgent one runs at its receiver's 0.3 for 20 s; the other gets 0.7 meanwhile.
    assert wire.end_of(1) == pytest.approx(20, abs=1)
    assert wire.end_of(0) <= 23


def test_a_nic_slower_than_known_carries_the_urgent_first_all_the_same() -> None:
    wire = Wire(UrgentFirst(1.1 * RATE, CHUNK, LOW_WATER))
    wire.queue.add(message(0, 5, 30, "s2"))
    wire.queue.add(message(1, 1, 30, "s3"))
    wire.run(70)
    # With tokens alone both share the NIC from some moment on, and end at 47 and 60.
    assert wire.end_of(1) <= 34
    assert wire.end_of(0) == pytest.approx(60, abs=0.5)


def test_a_nic_faster_than_known_is_filled_all_the_same() -> None:
    wire = Wire(UrgentFirst(RATE / 10, CHUNK, LOW_WATER))
    wire.queue.add(message(0, 1, 10))
    wire.run(30)
    assert wire.end_of(0) == pytest.approx(10, abs=0.1)


def test_little_is_handed_over_at_a_time() -> None:
    queue = urgent_first()
    queue.add(message(0, 1, 10, "s2"))
    first = [queue.take(0.0), queue.take(0.0)]
    assert all(first) and queue.take(0.0) is None
    assert queue.seconds_until_next(0.0) is None, "only a part that leaves makes room"
    queue.add(message(1, 2, 1, "s3"))
    assert queue.take(0.0) is None
    assert queue.seconds_until_next(0.0) == pytest.approx(3.0), "a window's debt, then a chunk"
    assert (late := queue.take(3.0)) is not None and late.message.index == 1


def test_the_next_message_begins_only_when_little_is_left_of_the_more_urgent_one() -> None:
    """The urgent message has three chunks. Two of them are under way at once, and by the NIC's rate
    the third has left at 3 s. Twice the low water takes the NIC a fifth of a second."""
    queue = UrgentFirst(RATE, CHUNK, 100)
    queue.add(message(0, 1, 3, "s2"))
    queue.add(message(1, 2, 2, "s3"))
    first, second = queue.take(0.0), queue.take(0.0)
    assert first and second and queue.take(0.9) is None
    queue.left(first, 1.0)
    assert (third := queue.take(1.0)) and third.message.index == 0
    queue.left(second, 2.0)
    assert queue.take(2.5) is None
    assert queue.seconds_until_next(2.5) == pytest.approx(0.3)
    assert (begun := queue.take(2.8)) and begun.message.index == 1
    assert queue.take(2.9) is None, "a window is under way"


def test_a_message_that_comes_meanwhile_does_not_wait_for_one_that_could_have_begun() -> None:
    """The last chunk of the first message goes alone from 9 s on, and the second one may begin
    beside it. A third one, more urgent, comes at 9.5 s."""
    for low_water, end in ((CHUNK // 2, 16.0), (50, 14.0)):
        wire = Wire(UrgentFirst(RATE, CHUNK, low_water))
        wire.queue.add(message(0, 1, 10, "s2"))
        wire.queue.add(message(2, 5, 10, "s3"))
        wire.run(9.5)
        wire.queue.add(message(1, 2, 4, "s4"))
        wire.run(30)
        assert wire.end_of(1) == pytest.approx(end, abs=0.2)


def test_chunks_take_one_time_at_every_rate_within_limits() -> None:
    for rate in (50e6, 1e9):
        assert chunk_bytes(rate) * 8 / rate == pytest.approx(CHUNK_SECONDS, rel=0.01)
    assert chunk_bytes(1.0) > 0 and chunk_bytes(1e10) == chunk_bytes(1e15) == 1 << 19


def test_only_job_sharing_has_an_order_of_its_own() -> None:
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pq"]
    graph = build_graph(rows, [TensorRow("p", ("q",), 1000)])
    strict = placement_of(graph, cluster_of(2, ("a", "b")), {"p": "s1/0", "q": "s2/0"})
    job = strict.model_copy(update={"sharing": "job"})
    kinds = [
        {name: type(queue) for name, queue in queues_for(*question).items()}
        for question in (
            (strict, "s1/0", ("a", "b"), True),
            (job, "s1/0", ("a", "b"), True),
            (job, "s1/0", ("a", "b"), False),
        )
    ]
    assert kinds[0] == kinds[2] == {"": InOrder, "a": InOrder, "b": InOrder}
    assert kinds[1] == {"": InOrder, "a": UrgentFirst, "b": UrgentFirst}


LEAST = 2 * LEAST_CHUNK_BYTES


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ((0, 0), window_bytes(1e8)),  # none is stated: that of the lower rate
        ((0, 40_000), 39_936),
        ((100_096, 200_064), 100_096),
        ((200_064, 1), LEAST),
    ],
)
def test_ranks_hand_over_as_much_as_the_cluster_states(
    windows: tuple[int, int], expected: int
) -> None:
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pq"]
    graph = build_graph(rows, [TensorRow("p", ("q",), 10_000_000)])
    on = cluster_of(2, ("a",))
    rates = (1e9, 1e8)
    servers = tuple(
        server.model_copy(
            update={
                "nics": (
                    server.nics[0].model_copy(
                        update={"rate_bits_per_second": rate, "window_bytes": window}
                    ),
                )
            }
        )
        for server, rate, window in zip(on.servers, rates, windows, strict=True)
    )
    on = on.model_copy(update={"servers": servers})
    placement = placement_of(graph, on, {"p": "s1/0", "q": "s2/0"})
    job = placement.model_copy(update={"sharing": "job"})
    queue = queues_for(job, "s1/0", ("a",), True)["a"]
    (whole,) = rank_messages(job, "s1/0", ("a",)).sends["p"]
    assert max(part.bytes for part in whole.parts) == expected // 2
    queue.add([Waiting(whole, part) for part in whole.parts])
    taken = 0
    while (part := queue.take(0.0)) is not None:
        taken += part.part.bytes
    assert taken == expected
