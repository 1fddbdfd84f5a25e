"""Replay: does a rank take its time and report correctly, and is a wrong graph refused?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import placewire.job.placed.replay
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, rank_messages
from placewire.job.placed.replay import (
    Compute,
    ReceiveAction,
    SendAction,
    replay_actions,
    replay_step,
    sleep_until,
)
from placewire.job.transport.transport import Alone
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.placement import Placement
from tests.job.graphs import BYTES, fork_and_join
from tests.job.ranks import Rank, run_ranks
from tests.measured import until
from tests.placements import cluster_of, placement_of

RAILS = ("a", "b")


def on_two(graph: OperatorGraph) -> Placement:
    devices = dict.fromkeys(graph.ids, "s1/0") | {"right": "s2/0", "idle": "s2/0"}
    return placement_of(graph, cluster_of(2, RAILS), devices, shares={"a": 0.25, "b": 0.75})


def test_actions_merge_operators_between_messages() -> None:
    graph = fork_and_join()
    placement = on_two(graph)
    messages = rank_messages(placement, "s1/0", RAILS)
    actions = replay_actions(graph, placement, "s1/0", messages, 2.0)
    assert [type(a) for a in actions] == [Compute, SendAction, Compute, ReceiveAction, Compute]
    assert [a.seconds for a in actions if isinstance(a, Compute)] == pytest.approx(
        [0.04, 0.06, 0.04]
    )


def test_a_bundle_is_copied_before_it_is_sent() -> None:
    rows = [
        OperatorRow(name, "aten.add.Tensor", {"cpu": 0.3 if name == "x" else 0.1})
        for name in ("x", "a", "b", "c")
    ]
    size = 1 << 20
    tensors = [TensorRow("x", ("a",), 3 * size), TensorRow("a", ("c",), size)]
    graph = build_graph(rows, [*tensors, TensorRow("b", ("c",), size)], device_types=("cpu",))
    on = dict.fromkeys("xab", "s1/0") | {"c": "s2/0"}
    found = placement_of(graph, cluster_of(2), on, bundle_seed=1)
    (message,) = found.messages
    assert message.bundled and message.bytes == 2 * size
    actions = replay_actions(graph, found, "s1/0", rank_messages(found, "s1/0", ("a",)), 2.0)
    assert [type(action) for action in actions] == [Compute, Compute, SendAction]
    copying = actions[1]
    assert isinstance(copying, Compute) and not copying.operators
    assert copying.seconds == pytest.approx(2.0 * 2 * 0.1 * 2 / 3)


def test_what_goes_to_two_ranks_is_copied_once() -> None:
    size = 1 << 20
    rows = [OperatorRow(name, "aten.add.Tensor", {"cpu": 0.1}) for name in "abcd"]
    tensors = [TensorRow(name, ("c", "d"), size) for name in "ab"]
    graph = build_graph(rows, tensors, device_types=("cpu",))
    on = dict.fromkeys("ab", "s1/0") | {"c": "s2/0", "d": "s3/0"}
    plain = placement_of(graph, cluster_of(3), on)
    joined = [
        last.model_copy(update={"bundled": first.tensors, "bytes": 2 * size, "send_order": k})
        for k, there in enumerate(("s2/0", "s3/0"))
        for first, last in [[m for m in plain.messages if m.destination == there]]
    ]
    found = plain.model_copy(update={"messages": tuple(joined)})
    actions = replay_actions(graph, found, "s1/0", rank_messages(found, "s1/0", ("a",)), 1.0)
    assert [type(action) for action in actions] == [Compute, Compute, SendAction, SendAction]


@pytest.mark.timed
def test_two_ranks_take_the_predicted_time_and_send_the_bytes(tmp_path: Path) -> None:
    graph = fork_and_join()
    file = tmp_path / "graph.json"
    save_graph(graph, file)

    def measure() -> list[Rank]:
        options: dict[str, Any] = {
            "kind": "replay",
            "graph_file": str(file),
            "steps": 8,
            "time_scale": 2.0,
        }
        return run_ranks(on_two(graph), tmp_path, RAILS, **options)

    def step(ranks: list[Rank]) -> float:
        return min(max(pair) for pair in zip(*(rank.step_seconds for rank in ranks), strict=True))

    # Critical path: first, right, last, at twice their time; loopback takes next to nothing. One
    # after the other, all would take 0.26 s.
    ranks = until(lambda ranks: step(ranks) < 0.24, measure)
    assert 0.2 <= step(ranks) < 0.24
    sent = {
        (rank.spec.device, t.destination, t.rail): t.bytes
        for rank in ranks
        for t in rank.finished.traffic
    }
    assert {(s, d) for s, d, _ in sent} == {("s1/0", "s2/0"), ("s2/0", "s1/0")}
    assert sent["s1/0", "s2/0", "a"] + sent["s1/0", "s2/0", "b"] == 8 * BYTES
    assert sent["s2/0", "s1/0", "a"] + sent["s2/0", "s1/0", "b"] == 8 * BYTES // 2
    assert sent["s1/0", "s2/0", "b"] == pytest.approx(0.75 * 8 * BYTES, rel=1e-3)
    assert all(rank.losses == [] for rank in ranks)


def test_one_rank_needs_no_network(tmp_path: Path) -> None:
    graph = fork_and_join()
    file = tmp_path / "graph.json"
    save_graph(graph, file)
    alone = placement_of(graph, cluster_of(1, RAILS), dict.fromkeys(graph.ids, "s1/0"))
    (rank,) = run_ranks(alone, tmp_path, (), kind="replay", graph_file=str(file), steps=5)
    assert min(rank.step_seconds) >= 0.13
    assert rank.finished.traffic == ()


class Clock:
    """Replaces the module `time`: reading it takes a microsecond, and a sleep is too long."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + 1e-4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(placewire.job.placed.replay, "time", clock)
    return clock


class Late(Alone):
    """A message that arrives at a given time after the step began; sends that take their time."""

    def __init__(self, clock: Clock, arrival_seconds: float, send_seconds: float = 0.0) -> None:
        self.clock = clock
        self.arrival_seconds = arrival_seconds
        self.send_seconds = send_seconds
        self.sent_at: list[float] = []
        self.sent_bytes: Counter[tuple[str, str]] = Counter()

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        self.sent_at.append(self.clock.now)
        self.clock.now += self.send_seconds

    def receive(self, message: RankMessage) -> torch.Tensor:
        sleep_until(self.arrival_seconds)
        return torch.empty(0)


@pytest.mark.parametrize(("arrival", "expected"), [(0.0, 0.07), (0.05, 0.09)])
def test_work_begins_when_the_device_is_free_and_the_message_there(
    clock: Clock, arrival: float, expected: float
) -> None:
    message = RankMessage(0, "p", 0, 10, 1, "s2/0", True, (), ())
    actions = (Compute(0.03), ReceiveAction(message), Compute(0.04), SendAction(message))
    transport = Late(clock, arrival)
    replay_step(actions, transport, torch.zeros(10, dtype=torch.uint8))
    assert transport.sent_at == [pytest.approx(expected, abs=2e-5)]


def test_delays_do_not_add_up(clock: Clock) -> None:
    message = RankMessage(0, "p", 0, 10, 1, "s2/0", True, (), ())
    transport = Late(clock, 0.0, send_seconds=0.0003)
    replay_step((Compute(0.0005), SendAction(message)) * 100, transport, torch.zeros(10))
    # 0.08 if each send delayed the operators behind it.
    assert transport.sent_at[-1] == pytest.approx(0.05, abs=2e-5)


def test_another_graph_is_refused() -> None:
    graph = fork_and_join()
    placement = on_two(graph).model_copy(update={"structure_hash": "0" * 64})
    messages = rank_messages(placement, "s1/0", RAILS)
    with pytest.raises(JobError, match="graph file has structure"):
        replay_actions(graph, placement, "s1/0", messages, 1.0)


def test_a_message_that_nobody_needs_is_refused() -> None:
    graph = fork_and_join()
    placement = on_two(graph)
    odd = placement.messages[0].model_copy(update={"producer": "idle"})
    odd = odd.model_copy(update={"source": "s2/0", "destination": "s1/0", "output": 3})
    more = placement.model_copy(update={"messages": (*placement.messages, odd)})
    messages = rank_messages(more, "s1/0", RAILS)
    with pytest.raises(JobError, match="nothing needs it"):
        replay_actions(graph, more, "s1/0", messages, 1.0)
