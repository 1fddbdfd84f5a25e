"""Bundles: which tensors travel together, and that simulator and check count them alike."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from placewire.optimizer.check.check import check
from placewire.optimizer.check.recompute.facts import Facts
from placewire.optimizer.check.recompute.memory import recompute_memory
from placewire.optimizer.check.recompute.times import recompute_times
from placewire.optimizer.engines import bundling
from placewire.optimizer.explain.explanation import explain
from placewire.optimizer.explain.summary import timeline_of
from placewire.optimizer.placement import Placement, Sent, placement_from_json
from placewire.optimizer.problem import InfeasibleError, Problem
from tests.drawn_examples import examples
from tests.optimizer.bundled_placements import MS, ON, placed, two_servers, two_small
from tests.optimizer.cases import cluster, graph
from tests.optimizer.problems import SHARINGS, able_devices, problems


def test_tensors_that_nobody_waits_for_travel_together():
    placement = placed(two_small(), ON)
    (message,) = placement.messages
    assert (message.bundled, message.producer, message.bytes) == ((Sent("A", 0, 100),), "B", 200)
    assert placement.step_seconds == pytest.approx(22 * MS + 1e-5)
    assert check(two_small().graph, placement) == ()


def test_where_messages_take_no_time_of_devices_nothing_is_joined():
    problem = replace(two_small(), cluster=cluster(2))
    assert len(placed(problem, ON).messages) == 2


def test_a_tensor_that_is_needed_at_once_travels_alone():
    """R could start after 1.1 ms; in a bundle its tensor would arrive a millisecond later."""
    placement = placed(two_small(late=0.0), ON)
    assert [message.bundled for message in placement.messages] == [(), ()]


def test_a_large_tensor_travels_alone():
    """10 kB take 10 ms alone, which is longer than a bundle may take."""
    placement = placed(two_small(size=10_000), ON)
    assert len(placement.messages) == 2


def test_two_outputs_of_one_operator_are_two_messages():
    work = graph(
        {"A": MS, "W": 20 * MS, "R": MS, "S": MS},
        [("A", ["R"], 100), ("A", ["S"], 100), ("W", ["R"], 0)],
    )
    assert len(placed(Problem(work, two_servers(), "job"), [0, 1, 1, 1]).messages) == 2


def test_a_bundle_that_does_not_fit_the_memory_is_left_out():
    """With the bundle the first device holds both tensors and their copy, 400 bytes."""
    problem = two_small()
    work = replace(problem.graph, activation_bytes=np.full(5, 100, dtype=np.int64))
    for memory, messages in ((400, 1), (300, 2)):
        tight = Problem(work, two_servers(memory), "job")
        assert len(placed(tight, ON).messages) == messages


def test_a_bundle_takes_the_time_of_its_copies_on_its_sender():
    """A copy moves two bytes where the additions, of 3, 6 and 30 ms for 1 MiB, move three. One that
    is small or cannot run counts for nothing."""
    problem = two_small(size=1000)
    more = {"X": 3 * MS, "Y": 60 * MS, "Z": 6 * MS, "tiny": MS, "never": np.inf, "end": 0.0}
    work = graph(
        {**dict(zip(problem.graph.ids, problem.graph.seconds[:, 0], strict=True)), **more},
        [
            ("A", ["R"], 1000), ("B", ["S"], 1000), ("W", ["R"], 0), ("X", ["end"], 1 << 20),
            ("Y", ["end"], 2 << 20), ("Z", ["end"], 1 << 20), ("tiny", ["end"], 1000),
            ("never", ["end"], 1 << 20),
        ],
    )  # fmt: skip
    added = {"X", "Y", "Z", "tiny", "never"}
    work = replace(work, types=tuple("aten.add.Tensor" if i in added else "op" for i in work.ids))
    each_byte = 6 * MS / (1 << 20) * 2 / 3
    assert work.copy_seconds_per_byte == pytest.approx([each_byte])
    runs = replace(work, seconds=np.where(np.isfinite(work.seconds), work.seconds, 0.0))
    runs = replace(
        runs,
        types=tuple("op" if i == "never" else t for i, t in zip(work.ids, work.types, strict=True)),
    )
    placement = placed(Problem(runs, two_servers(), "job"), [*ON, *[1] * 6])
    assert len(placement.messages) == 1
    again, timeline = timeline_of(runs, placement)
    took = timeline.finish[-1] - timeline.start[-1]
    assert again.graph.types[-1] == "bundle"
    assert took == pytest.approx(2000 * each_byte + 1e-5), "and of the message"
    assert check(runs, placement) == ()
    lie = placement.model_copy(update={"step_seconds": placement.step_seconds * 0.999})
    assert check(runs, lie) != ()


def to_two_others() -> tuple[Problem, list[int]]:
    """A and B on the first server make what R reads on the second one and S on the third one."""
    work = graph(
        {"A": MS, "B": MS, "R": MS, "S": MS, "X": 6 * MS, "end": 0.0},
        [("A", ["R", "S"], 1000), ("B", ["R", "S"], 1000), ("X", ["end"], 1 << 20)],
    )
    types = tuple("aten.add.Tensor" if name == "X" else "op" for name in work.ids)
    on = cluster(3).model_copy(update={"message_seconds": 1e-5})
    return Problem(replace(work, types=types), on, "job"), [0, 0, 1, 2, 0, 0]


def test_what_goes_to_two_devices_is_copied_once():
    problem, device = to_two_others()
    work = problem.graph
    placement = placed(problem, device)
    assert [len(message.bundled) for message in placement.messages] == [1, 1]
    again, timeline = timeline_of(work, placement)
    assert again.graph.types.count("bundle") == 1
    copied = 2000 * 6 * MS / (1 << 20) * 2 / 3
    assert timeline.finish[-1] - timeline.start[-1] == pytest.approx(copied + 2 * 1e-5)
    assert check(work, placement) == ()
    lie = placement.model_copy(update={"step_seconds": placement.step_seconds + copied})
    assert check(work, lie) != ()


def test_bundles_that_would_wait_for_each_other_are_left_out(monkeypatch):
    """Of A B on the first device and C D on the second, B reads C's tensor and D reads A's."""
    work = graph(
        {"A": MS, "B": MS, "C": MS, "D": MS, "R": MS, "S": MS},
        [
            ("A", ["D"], 100), ("C", ["B"], 100), ("B", ["S"], 100), ("D", ["R"], 100),
        ],
    )  # fmt: skip
    monkeypatch.setattr(bundling, "_ATTEMPTS", ((1e3, 1e3),))
    placement = placed(Problem(work, two_servers(), "job"), [0, 0, 1, 1, 0, 1])
    assert len(placement.messages) == 4
    assert check(work, placement) == ()


@pytest.mark.parametrize("sharing", SHARINGS)
@settings(max_examples=examples(25), deadline=None, database=None)
@given(st.data())
def test_check_agrees_with_the_simulator_on_bundles(sharing, data):
    drawn = data.draw(problems(largest=12, models=("contended",), extremes=True))
    dear = drawn.cluster.model_copy(update={"message_seconds": 10.0})
    problem = replace(drawn, sharing=sharing, cluster=dear)
    device = data.draw(able_devices(problem))
    count = problem.graph.operator_count
    priority = np.array(data.draw(st.permutations(range(count))), dtype=float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundling, "_ATTEMPTS", ((1e3, 1e3), (0.1, 1e3), (0.0, 1e3)))
        try:
            placement = placed(problem, device, priority)
        except InfeasibleError:
            reject()
    assert check(problem.graph, placement) == ()
    again, timeline = timeline_of(problem.graph, placement)
    assert timeline.step_seconds == pytest.approx(placement.step_seconds, rel=1e-9, abs=1e-12)
    assert placement.bound_seconds <= placement.step_seconds * (1 + 1e-9)
    facts = Facts(problem.graph, placement)
    times = recompute_times(facts)
    assert times is not None
    finish = [times.finish[i] for i in range(again.graph.operator_count)]
    assert finish == pytest.approx(timeline.finish.tolist(), rel=1e-6, abs=1e-9)
    names = problem.cluster.device_names
    arrivals = {(m.tensor, names[m.destination]): m.finish_seconds for m in timeline.messages}
    assert times.arrival == pytest.approx(arrivals, rel=1e-6, abs=1e-9)
    peaks = dict(zip(names, timeline.peak_memory_bytes.tolist(), strict=True))
    assert recompute_memory(facts, times) == peaks
    explained = explain(problem.graph, placement)
    assert explained.step_seconds == pytest.approx(placement.step_seconds, rel=1e-9, abs=1e-12)


def changed(placement: Placement, **update: object) -> Placement:
    (message,) = placement.messages
    return placement.model_copy(update={"messages": (message.model_copy(update=update),)})


@pytest.mark.parametrize(
    ("update", "what"),
    [
        ({"bundled": (Sent("Z", 0, 100),)}, "producer 'Z' is no operator"),
        ({"bundled": (Sent("A", 1, 100),)}, "'A' has no output 1"),
        ({"bundled": (Sent("A", 0, 90),)}, "says 90 bytes, the tensor has 100"),
        ({"bytes": 201}, "'B' in a bundle says 101 bytes, the tensor has 100"),
        ({"bundled": (Sent("R", 0, 100),)}, "has no output 0"),
        ({"bundled": (Sent("W", 0, 0),)}, "says 0 bytes, the tensor has 0"),
        ({"bundled": (Sent("B", 0, 100),)}, "runs before one that lies before it"),
        ({"bundled": (Sent("B", 0, 100),)}, "is sent to s2/0 twice"),
        ({"bundled": (Sent("B", 0, 100),), "producer": "A"}, "runs before one that lies before"),
        ({"source": "s2/0", "destination": "s1/0"}, "does not run on s2/0"),
        ({"source": "s2/0", "destination": "s1/0"}, "is needed by nobody on s1/0"),
    ],
)
def test_each_lie_about_a_bundle_is_found(update, what):
    problem = two_small()
    found = check(problem.graph, changed(placed(problem, ON), **update))
    assert any(what in str(violation) for violation in found), found


def test_a_tensor_in_two_messages_is_found():
    problem = two_small()
    placement = placed(problem, ON)
    (message,) = placement.messages
    alone = message.model_copy(update={"bundled": (), "bytes": 100, "send_order": 1})
    found = check(problem.graph, placement.model_copy(update={"messages": (message, alone)}))
    assert any("is sent to s2/0 twice" in str(violation) for violation in found)


def test_a_file_keeps_bundles_and_an_older_one_has_none():
    placement = placed(two_small(), ON)
    document = json.loads(json.dumps(placement.model_dump(mode="json")))
    assert document["version"] == 3
    assert document["messages"][0]["bundled"] == [["A", 0, 100]]
    assert placement_from_json(document) == placement
    older = {**document, "version": 2}
    older["messages"] = [
        {key: value for key, value in message.items() if key != "bundled"}
        for message in document["messages"]
    ]
    assert all(not message.bundled for message in placement_from_json(older).messages)


def test_the_graph_with_bundles_is_given_back_by_nobody():
    """The placement is for the graph as given."""
    problem = two_small()
    placement = placed(problem, ON)
    assert set(placement.operators) == set(problem.graph.ids)
    ordered = [name for names in placement.order.values() for name in names]
    assert sorted(ordered) == sorted(problem.graph.ids)
    assert placement.structure_hash == problem.graph.structure_hash
