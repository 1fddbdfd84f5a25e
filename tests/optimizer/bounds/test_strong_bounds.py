"""The exact bound: sharp on worked examples, and never above what some placement reaches."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from placewire.optimizer.bounds import lower_bound, strong, strong_bound
from placewire.optimizer.bounds.exact_rates import servers_are_alike
from placewire.optimizer.bounds.partial_graph import Part, cut_out
from placewire.optimizer.bounds.relaxation import relax
from placewire.optimizer.bounds.subject import subject_of
from placewire.optimizer.names import Model
from placewire.optimizer.network.nics import capacity_of, network_limits, widest_rates
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import starting_rates
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph, graphs, podded
from tests.optimizer.check.brute_force import (
    contention_free_optimum,
    simulated_optimum,
    tiny_problems,
)


def test_what_only_a_search_proves():
    # Five operators of 1 s on two devices: 3 s; work over devices says 2.5 s.
    made = graph({f"o{i}": 1.0 for i in range(5)}, [])
    problem = Problem(made, cluster(2))
    assert lower_bound(problem).seconds < 2.9
    heard: list[Any] = []
    bound = strong_bound(problem, 3.5, 10.0, on_bound=heard.append)
    assert bound.seconds == pytest.approx(3.0, rel=1e-4)
    assert "exact search" in bound.reason
    assert heard[-1] == bound
    assert [b.seconds for b in heard] == sorted(b.seconds for b in heard)


def test_the_recorded_order_binds_only_under_thesis():
    # A device runs its operators as recorded: B before C, although Z waits for C alone. Z is on
    # their device, or 5 s of bytes away.
    made = graph(
        {"B": 2.0, "C": 1.0, "Y": 0.0, "Z": 3.0},
        [("C", ["Z"], 5 * 10**6), ("B", ["Y"], 0)],
        colocation={"B": "k", "C": "k", "Y": "z", "Z": "z"},
    )
    free, fixed = (Problem(made, cluster(2), "job", model) for model in ("contended", "thesis"))
    assert strong_bound(fixed, 9.0, 5.0).seconds == pytest.approx(6.0, rel=1e-4)
    assert strong_bound(free, 9.0, 5.0).seconds == pytest.approx(6.0, rel=1e-4)
    apart = cluster(2, rates=[50 * BYTE_PER_MICROSECOND])
    free, fixed = (Problem(made, apart, "job", model) for model in ("contended", "thesis"))
    # Now Z may be apart: C, 0.1 s, Z, or behind B if the order says so.
    assert strong_bound(fixed, 9.0, 5.0).seconds == pytest.approx(6.0, rel=1e-4)
    assert strong_bound(free, 9.0, 5.0).seconds == pytest.approx(4.1, rel=1e-4)


@pytest.mark.parametrize("recorded", ["AXYZ", "ZYXA"])
def test_strict_rates_are_shared_between_receivers(recorded):
    # A feeds three operators of 4 s with 1 s worth of bytes each: at the full rate 1 + 1 + 4.
    seconds = {"A": 1.0, "X": 4.0, "Y": 4.0, "Z": 4.0}
    made = graph(
        {name: seconds[name] for name in recorded},
        [("A", [x], 10**6) for x in "XYZ"],
        weight_bytes={"A": 8 << 20, "X": 8 << 20, "Y": 8 << 20, "Z": 8 << 20},
    )
    alone = cluster(4, memory=9 << 20)
    # No two fit on one device: three receivers at once, each a third of the rate: 1 + 3 + 4.
    for model in ("thesis", "contended"):
        strict = Problem(made, alone, "strict", model)
        if model == "thesis":
            assert lower_bound(strict).seconds == pytest.approx(6.0, rel=1e-4)
        assert strong_bound(strict, 9.0, 10.0).seconds == pytest.approx(8.0, rel=0.03)
    # Under `unshaped` what is sent first need not wait for the rest; all must leave in the end.
    assert strong_bound(Problem(made, alone, "unshaped"), 9.0, 5.0).seconds == pytest.approx(
        8.0, rel=1e-3
    )


@pytest.mark.parametrize("backwards", [False, True])
def test_a_tensor_is_sent_to_each_server_that_reads_it(backwards):
    # No two fit on one device. A tensor of A, 1 s of bytes, goes to three readers: 1 + 3 + 4 s.
    # Backwards what three operators make comes to A: 4 + 3 + 1.
    tensors: list[tuple[str, list[str], int]] = [("A", ["X", "Y", "Z"], 10**6)]
    if backwards:
        tensors = [(x, ["A"], 10**6) for x in "XYZ"]
    made = graph(
        {"A": 1.0, "X": 4.0, "Y": 4.0, "Z": 4.0},
        tensors,
        weight_bytes=dict.fromkeys("AXYZ", 8 << 20),
    )
    problem = Problem(made, cluster(4, memory=9 << 20), "job")
    assert strong_bound(problem, 9.0, 5.0).seconds == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize("sharing", ["strict", "even", "job"])
@pytest.mark.parametrize("background", [None, BYTE_PER_MICROSECOND])
def test_a_server_that_carries_nothing_sends_nothing(sharing, background):
    # No two operators fit on one device, and only s1 and s2 reach each other: 1 + 1 + 1 s. The
    # third server has no NIC, or a neighbour takes all of it.
    held = dict.fromkeys("ABC", 8 << 20)
    made = graph({"A": 1.0, "B": 1.0, "C": 2.5}, [("A", ["B"], 10**6)], weight_bytes=held)
    servers = list(cluster(3, memory=9 << 20).servers)
    taken = [
        nic.model_copy(update={"background_bits_per_second": background or 0.0})
        for nic in servers[2].nics
    ]
    servers[2] = servers[2].model_copy(update={"nics": tuple(taken if background else ())})
    alone = cluster(3).model_copy(update={"servers": tuple(servers)})
    bound = strong_bound(Problem(made, alone, sharing, floor=0.0), 9.0, 3.0)
    assert bound.seconds == pytest.approx(3.0, rel=1e-3)
    assert "failed" not in bound.reason


def test_a_proof_that_fails_keeps_what_was_proven_before_and_says_why():
    made = graph({f"o{i}": 1.0 for i in range(5)}, [])
    problem = Problem(made, cluster(2))
    heard: list[Any] = []
    with patch.object(strong, "ExactModel", side_effect=OverflowError("too large")):
        bound = strong_bound(problem, 3.5, 5.0, on_bound=heard.append)
    assert bound.seconds == lower_bound(problem).seconds
    assert bound.reason.startswith(lower_bound(problem).reason)
    assert bound.reason.endswith("a stronger proof failed (OverflowError: too large)")
    assert [b.seconds for b in heard] == [bound.seconds]


@pytest.mark.parametrize("status", ["UNKNOWN", "FEASIBLE"])
def test_a_model_proves_no_more_than_its_horizon(status):
    """A solver may say more of the steps that the model has: it has none beyond the horizon."""
    made = graph({f"o{i}": 1.0 for i in range(5)}, [])
    problem, heard = Problem(made, cluster(2)), list[Any]()

    class Boasting:
        best_bound_callback: Any = None
        best_objective_bound = 1e12
        parameters = SimpleNamespace()

        def solve(self, model: Any) -> int:
            self.best_bound_callback(1e12)
            return int(getattr(cp_model, status))

    search = strong._Search(
        problem, 9.0, time.monotonic() + 60.0, 1, heard.append, lower_bound(problem)
    )
    subject = subject_of(problem, 9.0)
    assert subject is not None
    part = Part(np.arange(5), "")
    with patch.object(cp_model, "CpSolver", Boasting):
        search._prove(subject, part, 8_000, 2.75, 1.0, network=False)
    assert [bound.seconds for bound in heard] == [pytest.approx(2.75)]
    assert search.best.seconds <= 2.75 < search.step


def test_an_incumbent_that_is_optimal_is_proven_so():
    made = graph({"A": 1.0, "B": 1.0}, [])
    bound = strong_bound(Problem(made, cluster(2)), 1.0, 5.0)
    assert 1.0 - 1e-6 <= bound.seconds <= 1.0


@pytest.mark.parametrize("step", [np.inf, 0.0, 1.0])
def test_a_graph_that_takes_no_time_is_bounded_by_none(step):
    made = graph({"A": 0.0, "B": 0.0}, [("A", ["B"], 0)])
    assert strong_bound(Problem(made, cluster(2)), step, 1.0).seconds == 0.0


@settings(max_examples=examples(30), deadline=None)
@given(tiny_problems(largest=5), st.sampled_from([1.0, 1.3, np.inf]))
def test_no_strong_bound_exceeds_the_contention_free_optimum(drawn, looseness):
    # Under `thesis` transfers never meet, and only strict rates are shared.
    problem = Problem(drawn.graph, drawn.cluster, "job", "thesis")
    optimum = contention_free_optimum(problem)
    bound = strong_bound(problem, optimum * looseness, 2.0)
    assert bound.seconds <= optimum * (1 + 1e-9)
    assert bound.seconds >= lower_bound(problem).seconds


@settings(max_examples=examples(25), deadline=None)
@given(tiny_problems(largest=4), st.sampled_from(["unshaped", "job"]))
def test_no_strong_bound_exceeds_the_simulated_optimum(drawn, sharing):
    problem = Problem(drawn.graph, drawn.cluster, sharing, "contended")
    reached = simulated_optimum(problem)
    assert strong_bound(problem, 1.3 * reached, 2.0).seconds <= reached * (1 + 1e-9)


@pytest.mark.parametrize("sharing", ["unshaped", "job"])
def test_a_server_without_a_nic_keeps_nobody_from_a_proof(sharing):
    # Four readers of A, whose 0.1 s each are worth distributing; nothing can leave or reach s3.
    readers = [f"R{k}" for k in range(4)]
    seconds = {"A": 0.1, **dict.fromkeys(readers, 0.1)}
    base = cluster(3, [BYTE_PER_MICROSECOND])
    *joined, alone = base.servers
    servers = (*joined, alone.model_copy(update={"nics": ()}))
    problem = Problem(
        graph(seconds, [("A", readers, 20_000)]), base.model_copy(update={"servers": servers}),
        sharing, "contended",
    )  # fmt: skip
    reached = simulated_optimum(problem)
    bound = strong_bound(problem, reached, 2.0).seconds
    assert lower_bound(problem).seconds <= bound <= reached * (1 + 1e-9)


@st.composite
def shared_problems(draw: st.DrawFn) -> tuple[Problem, np.ndarray]:
    """Three servers and admissible rates between them."""
    made = draw(graphs(largest=4))
    base = cluster(3, [BYTE_PER_MICROSECOND, 3 * BYTE_PER_MICROSECOND], latency=0.002)
    problem = Problem(made, base, "strict", draw(st.sampled_from(["thesis", "contended"])))
    weight = st.sampled_from([0.05, 1.0, 3.0])
    weights = np.array([[draw(weight) for _ in range(3)] for _ in range(3)])
    np.fill_diagonal(weights, 0.0)
    most = np.maximum(weights.sum(axis=1)[:, None], weights.sum(axis=0)[None, :])
    return problem, widest_rates(capacity_of(base, base.nic_rates)) * (weights / most)[:, :, None]


@settings(max_examples=examples(25), deadline=None)
@given(shared_problems())
def test_no_strong_bound_exceeds_what_admissible_rates_reach(drawn):
    problem, rates = drawn
    reached = simulated_optimum(problem, rates)
    assert strong_bound(problem, 1.3 * reached, 2.0).seconds <= reached * (1 + 1e-9)


def in_pods(
    seconds: dict[str, float],
    tensors: list[tuple[str, list[str], int]],
    uplink: float,
    model: Model,
) -> Problem:
    """No two operators fit on one device."""
    made = graph(seconds, tensors, weight_bytes=dict.fromkeys(seconds, 60 << 20))
    return Problem(made, podded(uplink, memory=100 << 20), "strict", model)


def test_pods_with_uplinks_as_wide_as_a_nic_are_not_interchangeable():
    # A sends to D, and B to C: 4 s each where both have a pod of their own, and twice as long where
    # they share the uplink. All pairs of servers have the same widest rate.
    seconds = {"A": 1.0, "B": 0.9, "C": 0.8, "D": 0.7}
    tensors = [("A", ["D"], 4 * 10**6), ("B", ["C"], 4 * 10**6)]
    problem = in_pods(seconds, tensors, 1.0, "contended")
    device = np.array([0, 2, 3, 1])
    reached = simulate(problem, device, rates=starting_rates(problem, device)).step_seconds
    assert reached == pytest.approx(5.7, rel=1e-6)
    assert strong_bound(problem, 12.0, 5.0).seconds <= reached


@pytest.mark.parametrize(
    ("sharing", "uplink", "alike"),
    [("strict", 1.0, False), ("strict", 9.0, False), ("job", 1.0, True), ("job", 0.5, False)],
)
def test_only_what_no_row_of_the_model_tells_apart_is_alike(sharing, uplink, alike):
    assert servers_are_alike(Problem(graph({"A": 1.0}, []), podded(uplink), sharing)) == alike
    assert servers_are_alike(Problem(graph({"A": 1.0}, []), cluster(4), sharing))


@st.composite
def podded_problems(draw: st.DrawFn) -> tuple[Problem, np.ndarray]:
    """Two pairs of operators that talk, uplinks of at least a NIC, and admissible rates."""
    names = draw(st.permutations("ABCD"))
    second = st.sampled_from([0.0, 0.5, 0.7, 0.9, 1.0])
    size = st.sampled_from([10**5, 10**6, 4 * 10**6])
    tensors = [(names[k], [names[k + 1]], draw(size)) for k in (0, 2)]
    models: tuple[Model, ...] = ("thesis", "contended")
    model = draw(st.sampled_from(models))
    uplink = draw(st.sampled_from([1.0, 1.5]))
    problem = in_pods({name: draw(second) for name in "ABCD"}, tensors, uplink, model)
    within = np.kron(np.eye(2), np.ones((2, 2)))
    rates = np.where(within, 1.0, draw(st.sampled_from([0.02, 0.3])))[:, :, None]
    rates[np.arange(4), np.arange(4)] = 0.0
    limits = network_limits(problem.usable)
    return problem, rates / (limits.load(rates) / limits.capacity).max()


@settings(max_examples=examples(15), deadline=None)
@given(podded_problems(), st.sampled_from([1.3, 2.0]))
def test_no_strong_bound_exceeds_what_rates_within_wide_uplinks_reach(drawn, looseness):
    problem, rates = drawn
    reached = simulated_optimum(problem, rates)
    assert strong_bound(problem, looseness * reached, 2.0).seconds <= reached * (1 + 1e-9)


@settings(max_examples=examples(30), deadline=None)
@given(tiny_problems(largest=6), st.integers(1, 4))
def test_a_part_of_the_graph_proves_no_more_than_the_whole(drawn, size):
    problem = Problem(drawn.graph, drawn.cluster, "job", "thesis")
    optimum = contention_free_optimum(problem)
    with patch.object(strong, "_WHOLE", 0), patch.object(strong, "_PART", size):
        assert strong_bound(problem, 1.3 * optimum, 2.0).seconds <= optimum * (1 + 1e-9)


def test_a_part_keeps_what_the_rest_delays():
    # A and Z are joined by B, which is left out: its second, and the 2 s of one of its transfers
    # where they are apart.
    made = graph({"A": 3.0, "B": 1.0, "Z": 3.0}, [("A", ["B"], 2 * 10**6), ("B", ["Z"], 3 * 10**6)])
    whole = relax(Problem(made, cluster(2)))
    part = cut_out(whole, Part(np.array([0, 2]), ""))
    between = np.flatnonzero((part.source == 0) & (part.target == 1))
    assert part.near[between].tolist() == pytest.approx([1.0])
    assert part.far[between].tolist() == pytest.approx([3.0])
    assert part.heads_and_tails[0][:2].tolist() == pytest.approx([0.0, 4.0])
