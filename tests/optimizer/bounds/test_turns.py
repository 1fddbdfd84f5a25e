"""Bounds where devices keep to the recorded sort: sharp on worked examples, and never above the
least step of any placement."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from placewire.optimizer.bounds import exact_rates, lower_bound, strong, strong_bound
from placewire.optimizer.bounds.cases import Cases
from placewire.optimizer.bounds.contradiction import contradiction_bound, limits_of, tightened
from placewire.optimizer.bounds.load import share_of_load
from placewire.optimizer.bounds.message_time import no_messages
from placewire.optimizer.bounds.paths import path_bound
from placewire.optimizer.bounds.relaxation import Relaxation, relax
from placewire.optimizer.bounds.subject import subject_of
from placewire.optimizer.bounds.turns import as_one, with_turns
from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.problem import Problem
from tests.optimizer.cases import cluster, graph
from tests.optimizer.check.brute_force import contention_free_optimum, placements, tiny_problems
from tests.optimizer.problems import drawn

# An update of 1.5 s in three parts shares a device with its gradient, as 5 s pass to another one.
# In the sort its first part, which needs nothing, follows the gradient, which waits for A.
UPDATE = graph(
    {"A": 1.0, "G": 2.0, "decay": 0.5, "scale": 0.5, "write": 0.5},
    [
        ("A", ["G"], 100),
        ("G", ["scale"], 5 * 10**6),
        ("decay", ["write"], 5 * 10**6),
        ("scale", ["write"], 5 * 10**6),
    ],
)


def thesis(made, servers: int = 2) -> Problem:
    return Problem(made, cluster(servers), "job", "thesis")


def fine(problem: Problem) -> Problem:
    """The problem as the search of decomposed graphs sees it."""
    noted = replace(problem.graph, notes={**problem.graph.notes, "decompose": True})
    return replace(problem, graph=noted)


def test_what_shares_a_device_runs_in_the_recorded_sort():
    relaxation, limits = relax(thesis(UPDATE)), limits_of(thesis(UPDATE), np.zeros(5))
    forced, _ = tightened(relaxation, limits, 5.0, 10)
    assert forced is not None and path_bound(forced).seconds == pytest.approx(4.0, rel=1e-3)
    forced, _ = tightened(with_turns(relaxation), limits, 5.0, 10)
    assert forced is not None and path_bound(forced).seconds == pytest.approx(4.5, rel=1e-3)
    assert contention_free_optimum(thesis(UPDATE)) == pytest.approx(4.5, rel=1e-3)


def test_only_decomposed_graphs_are_bounded_so_before_the_search():
    assert lower_bound(thesis(UPDATE)).seconds < 4.2
    assert lower_bound(fine(thesis(UPDATE))).seconds == pytest.approx(4.5, rel=2e-3)
    assert strong_bound(thesis(UPDATE), 4.8, 5.0).seconds == pytest.approx(4.5, rel=2e-3)
    assert lower_bound(fine(replace(thesis(UPDATE), model="contended"))).seconds < 4.2


def test_two_units_on_one_device_run_in_the_recorded_sort():
    # A2 comes 4 s after A1, which is why B, the last of the sort, cannot share their device within
    # 7 s: it would run from second 6 on. In another order it would run while A2 waits.
    made = graph(
        {"A1": 1.0, "S": 4.0, "A2": 1.0, "B": 3.0, "Z": 0.5},
        [("A1", ["S"], 0), ("S", ["A2"], 0), ("B", ["Z"], 2 * 10**6)],
        colocation={"A1": "a", "A2": "a"},
    )
    relaxation, limits = relax(thesis(made)), limits_of(thesis(made), np.zeros(5))
    for one, apart in ((relaxation, False), (with_turns(relaxation), True)):
        forced, _ = tightened(one, limits, 7.0, 10)
        assert forced is not None
        number = forced.group[[0, 3]]
        clashes = bool((number >= 0).all()) and bool(forced.clashes[tuple(number)])
        assert clashes is apart


def test_what_is_certainly_on_a_device_has_ended_before_a_later_one_starts_there():
    # Within 7 s, X leaves room for S alone, and A2 waits for S until second 5.1: in another order B
    # would run before A2 on the device of the As.
    made = graph(
        {"A1": 1.0, "S": 0.1, "A2": 1.0, "B": 3.0, "X": 5.5},
        [("A1", ["S"], 0), ("S", ["A2"], 4 * 10**6)],
        colocation={"A1": "a", "A2": "a", "S": "x", "X": "x"},
    )
    relaxation = relax(thesis(made))

    def is_refuted(one: Relaxation, step: float) -> bool:
        return Cases(one, no_messages(), step, time.monotonic() + 60.0).refuted()

    assert not is_refuted(relaxation, 7.0)
    assert is_refuted(with_turns(relaxation), 7.0)
    # The As beside X, and B alone.
    assert contention_free_optimum(thesis(made)) == pytest.approx(7.6)
    assert not is_refuted(with_turns(relaxation), 7.6 + 1e-6)


def test_no_unit_of_many_hides_what_it_waits_for():
    # Of what V reads from other units, one part comes by a transfer of 5 s, or both are on its
    # device, one after the other. Before V are more operators of its unit than its head considers.
    short = {f"s{k}": 1e-3 for k in range(40)}
    made = graph(
        {"P": 3.0, "Q": 3.0, **short, "V": 10.0},
        [("P", ["V"], 5 * 10**6), ("Q", ["V"], 5 * 10**6)],
        colocation=dict.fromkeys([*short, "V"], "u"),
    )
    relaxation = relax(thesis(made))
    plain, turns = relaxation.heads_and_tails, with_turns(relaxation).heads_and_tails
    assert plain[0].max() == pytest.approx(6.0)
    for without, within in zip(plain, turns, strict=True):
        assert (within >= without).all() and (within > without).any()
    joined, _ = as_one(with_turns(relaxation))
    assert path_bound(joined).seconds >= 16.0 * (1 - 1e-9)


def test_a_run_on_one_device_becomes_one_operator():
    relaxation, limits = with_turns(relax(thesis(UPDATE))), limits_of(thesis(UPDATE), np.zeros(5))
    forced, _ = tightened(relaxation, limits, 5.0, 10)
    assert forced is not None
    joined, home = as_one(forced)
    assert home.tolist() == [0, 1, 1, 1, 1]
    assert joined.work.tolist() == [1.0, 3.5]
    assert path_bound(joined).seconds == pytest.approx(path_bound(forced).seconds)


def test_what_another_unit_reads_or_waits_for_ends_a_run():
    made = graph(
        {"A": 1.0, "B": 1.0, "C": 1.0, "D": 1.0, "Z": 3.0},
        [("A", ["B"], 0), ("B", ["C", "Z"], 0), ("C", ["D"], 0), ("Z", ["D"], 0)],
        colocation=dict.fromkeys("ABCD", "k"),
    )
    recorded = relax(thesis(made)).order.tolist()
    joined, home = as_one(with_turns(relax(thesis(made))))
    assert recorded == [0, 1, 2, 4, 3]
    assert home.tolist() == [0, 0, 1, 3, 2]
    assert joined.work.tolist() == [2.0, 1.0, 3.0, 1.0]
    assert path_bound(joined).seconds == pytest.approx(6.0)


@st.composite
def problems_in_turns(draw: st.DrawFn) -> tuple[Problem, float]:
    """A tiny problem of the model, and its least step where no transfer waits for another."""
    problem = replace(draw(tiny_problems()), model="thesis")
    least = contention_free_optimum(problem)
    assume(np.isfinite(least) and least > 0.0)
    return problem, least


@drawn(200)
@given(problems_in_turns())
def test_no_bound_in_turns_is_above_the_least_step(made):
    problem, least = made
    assert lower_bound(fine(problem)).seconds <= least * (1 + 1e-9)
    relaxation = with_turns(relax(problem))
    limits = limits_of(problem, share_of_load(problem.seconds))
    for longer in (1e-9, 0.05):
        step = least * (1 + longer)
        forced, _ = tightened(relaxation, limits, step, 12)
        assert forced is not None
        joined, _ = as_one(forced)
        assert path_bound(joined).seconds <= step
        subject = subject_of(problem, step)
        assert subject is not None
        proven = contradiction_bound(subject.relaxation, subject.limits, 0.5 * least)
        assert proven.seconds <= step
        assert not Cases(joined, no_messages(), step, time.monotonic() + 60.0).refuted()


@drawn(25)
@given(problems_in_turns(), st.sampled_from([1.0, 1.3, 3.0]))
def test_no_strong_bound_in_turns_is_above_the_least_step(made, looseness):
    problem, least = made
    assume(problem.sharing != "strict")
    bound = strong_bound(fine(problem), least * looseness, 0.5)
    assert bound.seconds <= least * (1 + 1e-9)
    assert "failed" not in bound.reason


def least_at_best_rates(problem: Problem) -> float:
    """The least step of every placement within the memories, with the allocator's rates."""
    no_priority = np.zeros(problem.graph.operator_count)
    found = [score(problem, Solution(home, no_priority, None)) for home in placements(problem)]
    return min((one.step_seconds for one in found if one.excess == 0.0), default=np.inf)


@pytest.mark.hypothesis
def test_no_strong_bound_with_decided_rates_is_above_the_least_step():
    """Under `strict` the model knows how pairs of servers share NICs, of operators that are one."""
    joined = []

    @drawn(12, always=True)
    @given(tiny_problems(largest=4), st.sampled_from([1.0, 1.3]))
    def holds(problem: Problem, looseness: float) -> None:
        problem = replace(problem, model="thesis", sharing="strict")
        least = least_at_best_rates(problem)
        assume(np.isfinite(least) and least > 0.0)
        bound = strong_bound(fine(problem), least * looseness, 0.5)
        assert bound.seconds <= least * (1 + 1e-9)
        assert "failed" not in bound.reason
        subject = subject_of(problem, least * (1 + 1e-6))
        if subject is not None and exact_rates.servers_are_devices(problem):
            joined.append(len(subject.relaxation.work) < len(subject.home))

    holds()
    assert any(joined)


def test_no_proof_speaks_of_steps_beyond_those_that_it_was_asked_of(monkeypatch):
    def proven(search: strong._Search, *_: object, **__: object) -> bool:
        search._improve(1e9, "too much")
        return True

    monkeypatch.setattr(strong._Search, "_prove", proven)
    bound = strong_bound(thesis(UPDATE), np.inf, 5.0)
    assert bound.seconds <= UPDATE.seconds[:, 0].sum()
