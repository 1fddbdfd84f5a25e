"""Bounds by cases: each reason where it is the sharp one, and none above what some step reaches."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from placewire.optimizer.bounds import strong, strong_bound
from placewire.optimizer.bounds.cases import Cases
from placewire.optimizer.bounds.contradiction import limits_of, tightened
from placewire.optimizer.bounds.load import share_of_load
from placewire.optimizer.bounds.message_time import messages_of
from placewire.optimizer.bounds.preemptive import fits
from placewire.optimizer.bounds.relaxation import relax
from placewire.optimizer.cluster import Link, Nic
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.bundles import Bundle, PlacedStep, with_bundles
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.bounds.test_bounds_of_any_placement import admissible_rates, forks
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph
from tests.optimizer.check.brute_force import linear_orders, placements
from tests.optimizer.problems import SHARINGS, able_devices, drawn, problems

FAR_OFF = 1e9
# Some drawn problems have so many cases that all of them would take minutes.
DRAWN_SECONDS = 0.2


def refuted(problem: Problem, step: float, seconds: float = FAR_OFF) -> bool:
    relaxation = relax(problem)
    limits = limits_of(problem, share_of_load(problem.seconds))
    forced, _ = tightened(relaxation, limits, step, 12)
    until = time.monotonic() + seconds
    return forced is None or Cases(forced, messages_of(problem), step, until).refuted()


def test_what_leaves_a_device_and_comes_back_is_sent_twice():
    # X and Y run between A and Z, which share a device: 1 + 2 + 2 + 1 s with both, and
    # 1 + 0.8 + 2 + 0.8 + 1 s where one of them is elsewhere.
    made = graph(
        {"A": 1.0, "X": 2.0, "Y": 2.0, "Z": 1.0},
        [("A", ["X", "Y"], 800_000), ("X", ["Z"], 800_000), ("Y", ["Z"], 800_000)],
        colocation={"A": "k", "Z": "k"},
    )
    problem = Problem(made, cluster(3), "job")
    assert refuted(problem, 5.59)
    assert not refuted(problem, 5.61)


@pytest.mark.parametrize("copying", [0.0, 1e-6, 1e-4])
def test_a_tensor_that_leaves_a_device_takes_its_time(copying):
    # Each A is read by a C, which shares a device with H and so has none with the As and Z, 4 s in
    # all: a message of 0.5 s for each, or a copy of 100,000 bytes, and one message at least.
    names = [str(k) for k in range(3)]
    made = graph(
        {**{f"A{k}": 1.0 for k in names}, "Z": 1.0, "H": 3.9, **{f"C{k}": 0.01 for k in names}},
        [(f"A{k}", [f"C{k}"], 100_000) for k in names],
        colocation={
            **{f"A{k}": "a" for k in names}, "Z": "a", "H": "c", **{f"C{k}": "c" for k in names}
        },
    )  # fmt: skip
    vars(made)["copy_seconds_per_byte"] = np.array([copying])
    problem = Problem(made, cluster(2).model_copy(update={"message_seconds": 0.5}), "job")
    least = 4.0 + 2 * min(0.5, copying * 100_000) + 0.5
    assert refuted(problem, least - 0.01)
    assert not refuted(problem, least + 0.01)


def test_tensors_that_arrive_at_no_common_time_are_in_two_messages():
    # B1 answers what A1 sends, and A2 needs the answer: when it sends to B2, B1 has long begun. So
    # the device of the Bs takes two messages and sends one, each of 0.5 s, beside 11.2 s of work.
    made = graph(
        {"A1": 5.0, "A2": 5.0, "B1": 0.1, "B2": 0.1, "Y1": 5.5, "Y2": 5.5},
        [("A1", ["B1"], 100), ("B1", ["A2"], 100), ("A2", ["B2"], 100)],
        colocation={"A1": "a", "A2": "a", "B1": "b", "B2": "b", "Y1": "b", "Y2": "b"},
    )
    problem = Problem(made, cluster(2).model_copy(update={"message_seconds": 0.5}), "job")
    assert refuted(problem, 11.2 + 3 * 0.5 - 0.01)
    # Y1, B1 with its two messages, Y2, and B2 with one.
    assert not refuted(problem, 11.2 + 3 * 0.5 + 0.01)


def test_a_tensor_takes_its_senders_nics_for_each_device_that_reads_it():
    # No two of W, B, C and D fit on one device. 1 MB takes 1 s to each of the last three.
    made = graph(
        {"A": 0.1, "W": 10.0, **dict.fromkeys("BCD", 9.0)},
        [("A", ["B", "C", "D"], 1_000_000)],
        colocation={"A": "a", "W": "a"},
    )
    problem = Problem(made, cluster(4), "job")
    assert refuted(problem, 0.1 + 3 * 1.0 + 9.0 - 0.01)
    assert not refuted(problem, 0.1 + 3 * 1.0 + 9.0 + 0.01)


def unlike_nics() -> Problem:
    """No two of W, B, C and D fit on one device. NICs of 4 and of 1 byte per microsecond."""
    made = graph(
        {"A": 0.1, "W": 10.0, **dict.fromkeys("BCD", 9.0)},
        [("A", ["B", "C", "D"], 1_000_000)],
        colocation={"A": "a", "W": "a"},
    )
    plain = cluster(4)
    servers = tuple(
        server.model_copy(
            update={"nics": (Nic(rail="a", rate_bits_per_second=rate * BYTE_PER_MICROSECOND),)}
        )
        for server, rate in zip(plain.servers, (4, 4, 1, 1), strict=True)
    )
    return Problem(made, plain.model_copy(update={"servers": servers}), "guarantee")


def test_a_tensor_takes_no_more_of_nics_than_of_those_of_the_fastest_server():
    # A on the first server sends 1 MB to each of the others at once: 1 s to the slow ones.
    problem = unlike_nics()
    rates = np.zeros((4, 4, 1))
    rates[0, 1:, 0] = 2 * BYTE_PER_MICROSECOND, BYTE_PER_MICROSECOND, BYTE_PER_MICROSECOND
    step = simulate(problem, np.array([0, 0, 1, 2, 3]), None, [[0, 1], [2], [3], [4]], rates)
    assert step.step_seconds == pytest.approx(0.1 + 1.0 + 9.0)
    assert not refuted(problem, step.step_seconds * (1 + 1e-9))


# A tensor of 3 MB takes a NIC for 3 s to each server that reads it.
READERS = {"A": 0.1, "W": 10.0, "B": 9.0, "C": 8.0}


def test_devices_of_one_server_send_each_other_nothing_over_nics():
    # A, W and one reader share a server; beside them, only one tensor passes the NICs.
    made = graph(READERS, [("A", ["B", "C"], 3_000_000)], colocation={"A": "a", "W": "a"})
    problem = Problem(made, cluster(2, devices=2, intra=1e9 * BYTE_PER_MICROSECOND), "job")
    step = simulate(problem, np.array([0, 0, 1, 2]), None, [[0, 1], [2], [3], []])
    assert step.step_seconds == pytest.approx(0.1 + 3.0 + 8.0)
    assert not refuted(problem, step.step_seconds * (1 + 1e-9))


def test_a_link_past_the_nics_takes_nothing_of_them():
    made = graph(READERS, [("A", ["B", "C"], 3_000_000)], colocation={"A": "a", "W": "a"})
    plain = cluster(3)
    one, other, _ = plain.device_names
    link = Link(
        source=one,
        destination=other,
        setup_latency_seconds=0.0,
        rate_bits_per_second=300 * BYTE_PER_MICROSECOND,
    )
    problem = Problem(made, plain.model_copy(update={"links": (link,)}), "job")
    step = simulate(problem, np.array([0, 0, 1, 2]), None, [[0, 1], [2], [3]])
    assert step.step_seconds == pytest.approx(0.1 + 3.0 + 8.0)
    assert not refuted(problem, step.step_seconds * (1 + 1e-9))


def test_all_work_fits_between_heads_and_tails_or_no_step_does():
    # Two of three operators that share a device, and one that does not, on two devices.
    head, tail = np.zeros(4), np.zeros(4)
    work, apart, shared = np.ones(4), np.arange(4), np.array([0, 0, 0, 1])
    assert fits(head, work, tail, apart, 2, 2.001)
    assert not fits(head, work, tail, apart, 2, 1.999)
    assert fits(head, work, tail, shared, 2, 3.001)
    assert not fits(head, work, tail, shared, 2, 2.999)
    # Three seconds of work come at second 1 at the earliest, and a fourth has all the time.
    late = np.array([0.0, 1.0, 1.0, 1.0])
    assert not fits(late, work, tail, apart, 2, 2.499)
    assert fits(late, work, tail, apart, 2, 2.501)


@pytest.mark.parametrize("group", [[0, -1, 1], [-1, 0, 1]])
def test_a_unit_clashes_where_some_of_its_operators_does(group):
    # A and B were joined; only one of them is of a group, which C's clashes with.
    made = graph(dict.fromkeys("ABC", 1.0), [("A", ["B"], 100)], colocation={"A": "k", "B": "k"})
    problem = Problem(made, cluster(1), "job")
    clashing = relax(problem).with_clashes(np.array(group), ~np.eye(2, dtype=bool))
    assert not Cases(relax(problem), messages_of(problem), 9.0, FAR_OFF).refuted()
    assert Cases(clashing, messages_of(problem), 9.0, FAR_OFF).refuted()


def test_a_search_without_time_refutes_nothing():
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 10**6)])
    problem = Problem(made, cluster(2))
    limits = limits_of(problem, share_of_load(problem.seconds))
    forced, _ = tightened(relax(problem), limits, 2.5, 12)
    assert forced is not None
    assert not Cases(forced, messages_of(problem), 2.5, time.monotonic() - 1.0).refuted()


@st.composite
def steps_of_messages(draw: st.DrawFn) -> Problem:
    """Four operators on two or three equal servers, where messages and copies take time."""
    size = st.sampled_from([65_535, 200_000, 800_000])
    seconds = {name: draw(st.sampled_from([0.1, 0.4, 1.0])) for name in "ABCD"}
    readers = draw(st.sampled_from(["BCD", "BC", "CD"]))
    tensors = [("A", list(readers), draw(size)), ("A", ["D"], draw(size)), ("B", ["D"], draw(size))]
    if draw(st.booleans()):
        tensors.append(("C", ["D"], draw(size)))
    made = graph(seconds, tensors, colocation=dict.fromkeys(draw(st.sampled_from(["AD", ""])), "k"))
    copying = draw(st.sampled_from([0.0, 1e-7, 1e-6]))
    vars(made)["copy_seconds_per_byte"] = np.array([copying])
    each = {"message_seconds": draw(st.sampled_from([0.05, 0.3]))}
    on = cluster(draw(st.integers(2, 3)), latency=draw(st.sampled_from([0.0, 0.05])))
    return Problem(made, on.model_copy(update=each), draw(st.sampled_from(["job", "unshaped"])))


def least_step(problem: Problem) -> float:
    """In seconds, of every placement in every order, without bundles, and with all that a device
    sends another in one, for every choice of such pairs of devices."""
    least, made = np.inf, problem.graph
    for device in placements(problem):
        pairs = {
            (int(device[made.tensor_producer[e]]), int(device[c]))
            for e in range(made.tensor_count)
            for c in made.tensor_consumers(e).tolist()
        }
        sent = [_all_sent(problem, device, a, b) for a, b in sorted(pairs) if a != b]
        choices = [[(), (Bundle(*one),)] if len(one[2]) > 1 else [()] for one in sent]
        for order in linear_orders(problem):
            rows = tuple(
                tuple(i for i in order if device[i] == d)
                for d in range(len(problem.cluster.devices))
            )
            for chosen in itertools.product(*choices):
                with contextlib.suppress(GraphError):
                    step = with_bundles(
                        PlacedStep(made, device, rows), list(itertools.chain(*chosen))
                    )
                    again = replace(problem, graph=step.graph)
                    found = simulate(again, step.device, None, step.order).step_seconds
                    least = min(least, found)
    return float(least)


def _all_sent(
    problem: Problem, device: np.ndarray, a: int, b: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    made = problem.graph
    tensors = (
        e
        for e in range(made.tensor_count)
        if device[made.tensor_producer[e]] == a and (device[made.tensor_consumers(e)] == b).any()
    )
    return a, (b,), tuple(tensors)


@drawn(25)
@given(steps_of_messages())
def test_no_step_of_any_placement_order_and_bundles_is_refuted(problem):
    step = least_step(problem)
    for longer in (1e-9, 0.01, 0.1):
        assert not refuted(problem, step * (1 + longer))


@st.composite
def bundles(draw: st.DrawFn, problem: Problem, device: np.ndarray) -> list[Bundle]:
    """Some of the tensors that go from one device to another, in one message."""
    made = problem.graph
    on = device.tolist()
    found = []
    for a, b in itertools.permutations(range(len(problem.cluster.devices)), 2):
        sent = [
            e
            for e in range(made.tensor_count)
            if made.tensor_bytes[e] > 0
            and on[made.tensor_producer[e]] == a
            and any(on[c] == b for c in made.tensor_consumers(e).tolist())
        ]
        if len(sent) > 1 and draw(st.booleans()):
            some = draw(st.lists(st.sampled_from(sent), min_size=2, unique=True))
            found.append(Bundle(a, (b,), tuple(some)))
    return found


def shortest_step(problem: Problem, data: st.DataObject) -> float:
    """The shortest of a few steps in seconds, with and without bundles; inf where none ends."""
    shortest, count = np.inf, problem.graph.operator_count
    for _ in range(3):
        device = data.draw(able_devices(problem))
        priority = np.array(data.draw(st.permutations(range(count))), dtype=float)
        rates = data.draw(admissible_rates(problem))
        plain = simulate(problem, device, priority, None, rates)
        shortest = min(shortest, plain.step_seconds)
        if np.isfinite(plain.step_seconds):
            order = PlacedStep(problem.graph, device, plain.order)
            # Bundles may wait for each other, or for what they bring.
            with contextlib.suppress(GraphError):
                step = with_bundles(order, data.draw(bundles(problem, device)))
                again = replace(problem, graph=step.graph)
                joined = simulate(again, step.device, None, step.order, rates)
                shortest = min(shortest, joined.step_seconds)
    return float(shortest)


@pytest.mark.hypothesis
@pytest.mark.parametrize("sharing", SHARINGS)
def test_no_step_that_is_reached_is_refuted(sharing):
    @drawn(60)
    @given(problems(largest=8, models=("contended",), extremes=True), st.data())
    def holds(made, data):
        problem = replace(made, sharing=sharing)
        if data.draw(st.booleans()):
            problem = replace(problem, graph=data.draw(forks()))
        copying = data.draw(st.sampled_from([0.0, 1e-8, 1e-6]))
        vars(problem.graph)["copy_seconds_per_byte"] = np.full(
            len(problem.graph.device_types), copying
        )
        step = shortest_step(problem, data)
        assume(np.isfinite(step) and step > 0.0)
        for longer in (1e-9, 0.02, 0.2):
            assert not refuted(problem, step * (1 + longer), DRAWN_SECONDS)

    holds()


def test_the_strong_bound_has_what_cases_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strong, "parts_of", lambda *_: ())
    made = graph(
        {"A": 1.0, "X": 2.0, "Y": 2.0, "Z": 1.0},
        [("A", ["X", "Y"], 800_000), ("X", ["Z"], 800_000), ("Y", ["Z"], 800_000)],
        colocation={"A": "k", "Z": "k"},
    )
    problem = Problem(made, cluster(3), "job")
    bound = strong_bound(problem, 5.7, 5.0)
    assert bound.seconds == pytest.approx(5.6, rel=2e-3)
    assert bound.reason.startswith("cases")
