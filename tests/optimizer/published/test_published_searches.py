"""Tests MCMC, FlexFlow's MCMC, local search and random: examples worked by hand, and properties
that hold by construction."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings

from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.engines import flexflow, local_search, mcmc, random_placement
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, layered
from tests.optimizer.published.published_cases import alike, small_problems

FEW = settings(max_examples=examples(25), deadline=None)
QUICK = SolveSettings(gap=0.0, moves=200, seed=3, time_limit_seconds=600.0)


def independent(count: int = 4):
    """Operators of 1 to `count` seconds without edges, on two devices: a partition problem."""
    return alike({f"o{k}": k + 1.0 for k in range(count)}, {}, 2)


# --- the thesis' MCMC -----------------------------------------------------------------------------


def test_mcmc_begins_on_one_device_and_keeps_only_what_is_shorter():
    """1 + 2 + 3 + 4 = 10 s on one device. With no steps that is the answer; the first proposal
    moves any of them away, which is always shorter; the best is 5, and 5 is found."""
    problem = independent()
    search = Reassignment(problem, by_remaining_path)
    until = deadline("mcmc", QUICK)
    alone = mcmc.one_device(search)
    assert set(alone.tolist()) == {0}
    costs = [mcmc.descend(search, alone, steps, 3, until).cost for steps in range(0, 60, 3)]
    assert costs[0] == pytest.approx(10.0) and costs[1] < 10.0
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(5.0)


@FEW
@given(small_problems())
def test_mcmc_is_never_worse_than_one_device(problem):
    alone = best_single(problem)
    placement = place(problem, "mcmc", QUICK)
    assert alone is not None
    assert placement.step_seconds <= alone[1] * (1 + 1e-9)


def test_mcmc_starts_where_least_is_lacking_and_finds_room():
    """Three operators of 10 bytes, devices of 20: no device holds all, so the start exceeds one."""
    rows = {f"o{k}": 1.0 for k in range(3)}
    problem = alike(rows, {}, 2, weight_bytes=dict.fromkeys(rows, 10), memory=20)
    assert best_single(problem) is None
    placement = place(problem, "mcmc", QUICK)
    assert len(placement.devices_used) == 2
    none = alike(rows, {}, 2, weight_bytes=dict.fromkeys(rows, 10), memory=15)
    with pytest.raises(InfeasibleError):
        place(none, "mcmc", QUICK)


# --- FlexFlow's MCMC ------------------------------------------------------------------------------


def test_metropolis_accepts_longer_steps_as_often_as_it_says():
    """A step longer by one temperature is accepted with 1 / e = 36.8 %, by two with 13.5 %."""
    generator = np.random.default_rng(1)
    for times in (1.0, 2.0):
        taken = sum(flexflow.accepts(10.0, 10.0 + times, 1.0, generator) for _ in range(20_000))
        assert taken / 20_000 == pytest.approx(math.exp(-times), abs=0.012)
    assert all(flexflow.accepts(10.0, cost, 1.0, generator) for cost in (10.0, 9.0, 0.0))
    assert not flexflow.accepts(10.0, math.inf, 1.0, generator)


def test_proposals_are_symmetric():
    """Detailed balance needs that a move is as likely as the one that undoes it: of three able
    devices each of the two others, every operator equally often."""
    problem = alike({"a": 1.0, "b": 1.0}, {}, 3)
    search = Reassignment(problem, by_remaining_path)
    generator, count = np.random.default_rng(0), dict[tuple[int, ...], int]()
    for _ in range(4_000):
        moved = tuple(search.proposal(np.array([0, 1]), generator).tolist())
        count[moved] = count.get(moved, 0) + 1
    assert set(count) == {(1, 1), (2, 1), (0, 0), (0, 2)}
    assert all(times == pytest.approx(1_000, abs=130) for times in count.values())


@FEW
@given(small_problems())
def test_flexflows_answer_is_never_worse_than_its_random_start(problem):
    search = Reassignment(problem, flexflow.by_arrival)  # type: ignore[attr-defined]
    start = search.cost(search.random(np.random.default_rng(5)))
    found = flexflow.walk(search, np.random.default_rng(5), 60, deadline("flexflow", QUICK))
    assert found.key <= start.key


def test_flexflow_ends_when_nothing_got_better_for_half_of_the_search():
    calls = []

    class Counting(Reassignment):
        def cost(self, device):
            calls.append(1)
            return super().cost(device)

    search = Counting(alike({"a": 1.0, "b": 1.0}, {}, 2), flexflow.by_arrival)  # type: ignore[attr-defined]
    flexflow.walk(search, np.random.default_rng(0), 1_000, deadline("flexflow", QUICK))
    assert 500 < len(calls) < 700  # the best of two operators is found at once


# --- local search ---------------------------------------------------------------------------------


def test_local_search_makes_the_best_move_each_time():
    """1, 2, 3 and 4 s on device 0: 10. The best single move takes 4 away (6 and 4); then 1 (5 and
    5); then nothing is shorter."""
    problem = independent()
    search = Reassignment(problem, by_remaining_path)
    until = deadline("local-search", QUICK)
    start = np.zeros(4, dtype=np.int64)
    first = local_search.improve(search, start, 1, until)
    assert first.device.tolist() == [0, 0, 0, 1] and first.cost == pytest.approx(6.0)
    last = local_search.improve(search, start, None, until)
    assert last.device.tolist() == [1, 0, 0, 1] and last.cost == pytest.approx(5.0)


@FEW
@given(small_problems())
def test_local_search_ends_where_no_reassignment_is_shorter(problem):
    search = Reassignment(problem, by_remaining_path)
    start = search.random(np.random.default_rng(2))
    found = local_search.improve(search, start, None, deadline("local-search", QUICK))
    assert found.cost <= search.cost(start).cost
    for unit in search.movable.tolist():
        for d in search.able[unit].tolist():
            assert search.cost(search.moved(found.device, unit, d)).cost >= found.cost


# --- random ---------------------------------------------------------------------------------------


def test_random_placements_are_uniform():
    search = Reassignment(alike({"a": 1.0, "b": 1.0}, {}, 2), by_remaining_path)
    generator, count = np.random.default_rng(0), dict[tuple[int, ...], int]()
    for _ in range(4_000):
        drawn = tuple(search.random(generator).tolist())
        count[drawn] = count.get(drawn, 0) + 1
    assert set(count) == set(itertools.product((0, 1), repeat=2))
    assert all(times == pytest.approx(1_000, abs=130) for times in count.values())


def test_what_does_not_fit_is_drawn_again():
    """Four operators of 10 on devices of 20: of 16 placements the 6 with two on each fit."""
    rows = {f"o{k}": 1.0 for k in range(4)}
    problem = alike(rows, {}, 2, weight_bytes=dict.fromkeys(rows, 10), memory=20)
    for seed in range(8):
        solution = random_placement.solve(problem, SolveSettings(seed=seed, moves=500))
        assert np.bincount(solution.device).tolist() == [2, 2]
    none = alike(rows, {}, 2, weight_bytes=dict.fromkeys(rows, 10), memory=15)
    with pytest.raises(InfeasibleError, match="none of 50 random placements"):
        random_placement.solve(none, SolveSettings(moves=50))


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["mcmc", "flexflow", "local-search", "random"])
def test_the_seed_decides(engine):
    problem = independent(6)
    one, same = (place(problem, engine, QUICK) for _ in range(2))
    assert one.operators == same.operators


@pytest.mark.parametrize("engine", ["mcmc", "flexflow", "local-search"])
def test_searches_stop_when_the_time_is_over(engine):
    problem = Problem(layered(30, 4), cluster(4, (8e6,), latency=1e-3))
    place(problem, engine, SolveSettings(gap=0.0, moves=2))  # compiles
    began = time.process_time()  # others on the machine take none of it
    place(problem, engine, SolveSettings(gap=0.0, time_limit_seconds=1.0))
    assert time.process_time() - began < 10.0
