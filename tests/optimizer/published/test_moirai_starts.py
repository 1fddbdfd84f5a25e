"""Tests the starts of Moirai's program: whole schedules, which are its answers if need be."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from placewire.optimizer.problem import Problem
from placewire.optimizer.published.formulations import (
    child_process,
    cp_sat,
    gurobi,
    highs,
    moirai_intervals,
)
from placewire.optimizer.published.formulations.answer import NO_ANSWER
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.moirai_start import best_schedule
from placewire.optimizer.published.formulations.own_step import transfer_seconds
from placewire.optimizer.published.formulations.papers import formulate
from placewire.optimizer.published.formulations.starts import starting_devices
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.published.published_cases import printed
from tests.optimizer.published.test_moirai import EXACT, SOLVERS, drawn, objective

FORKS = [(0.5, 6.5), (20.0, 11.0)]


def fork(sent: float) -> Problem:
    """Two branches of 5 s: on two devices, or all on one where what they send takes longer than
    they do."""
    seconds = {"a": (1.0, 1.0), "b": (5.0, 5.0), "c": (5.0, 5.0)}
    return printed(seconds, {("a", "b"): sent, ("a", "c"): sent})


@pytest.mark.parametrize(("sent", "expected"), FORKS)
def test_cp_sat_begins_with_the_shorter_of_one_device_and_heft(sent, expected, monkeypatch):
    """It may take the hint as it is: every variable has its value."""
    seen: list[float] = []

    def hint_alone(model, until, gap, told):
        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        assert solver.solve(model) == cp_model.OPTIMAL
        assert len(model.proto.solution_hint.vars) == len(model.proto.variables)
        told(solver.value, solver.objective_value, 0.0)
        seen.append(solver.objective_value)
        return cp_sat.Ended(0.0, infeasible=False, words="the hint")

    monkeypatch.setattr(cp_sat, "search", hint_alone)
    problem = fork(sent)
    assert objective(problem) == pytest.approx(expected)
    horizon = formulate(problem, "moirai", with_rows=False).horizon_seconds
    assert seen[0] / moirai_intervals._TICKS * horizon == pytest.approx(expected)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("sent", "expected"), FORKS)
def test_a_solver_that_finds_nothing_leaves_the_best_start(solver, sent, expected, monkeypatch):
    """The start is a whole schedule that takes no solver, and so the answer."""
    nothing = replace(NO_ANSWER, words="time limit")
    monkeypatch.setattr(highs, "solve", lambda *given: nothing)
    monkeypatch.setattr(gurobi, "solve", lambda *given: nothing)
    monkeypatch.setattr(
        cp_sat, "search", lambda *given: cp_sat.Ended(0.0, infeasible=False, words="time limit")
    )
    problem, heard = fork(sent), list[Any]()
    settings = replace(EXACT, options={"solver": solver})
    solution = solve("moirai", problem, settings, heard.append)
    assert heard[0].incumbent_seconds == heard[-1].incumbent_seconds == pytest.approx(expected)
    timeline = simulate(problem, solution.device, solution.priority, rates=np.zeros((1, 1, 0)))
    assert timeline.step_seconds == pytest.approx(expected)


def test_a_process_that_is_ended_before_its_model_is_built_leaves_the_best_start(monkeypatch):
    monkeypatch.setattr(child_process, "_SMALL_PARTS", 0)
    problem = drawn(5, 12, 3)
    found = solve("moirai", problem, replace(EXACT, time_limit_seconds=1e-6))
    assert any((found.device == start).all() for start in starting_devices(problem))


@pytest.mark.parametrize("seed", range(6))
def test_a_start_keeps_every_rule_of_the_program(seed):
    """No two operators of a device overlap, and no two flows that leave or that reach one."""
    problem = drawn(seed, 9, 3)
    formulation = formulate(problem, "moirai", with_rows=False)
    instance, network = formulation.instance, formulation.network
    device = np.random.default_rng(seed).integers(0, 3, 9)
    found = best_schedule(formulation, [device])
    assert found is not None
    i, j, bits = instance.edges
    took = problem.seconds[np.arange(9), device]
    start, flows = np.array(found.start), np.array(found.flows)
    late = transfer_seconds(instance, network, device, None)
    assert (late > 0).any() and (bits == 0).any()
    assert (flows >= (start + took)[i] - 1e-9).all()
    assert (start[j] >= flows + late - 1e-9).all()
    assert found.step == pytest.approx((start + took).max())
    moves = np.flatnonzero(late > 0)
    busy = [(start, start + took, device, np.arange(9))]
    busy += [(flows, flows + late, device[end], moves) for end in (i, j)]
    for begins, ends, where, members in busy:
        for a, b in itertools.combinations(members.tolist(), 2):
            if where[a] == where[b]:
                assert ends[a] <= begins[b] + 1e-9 or ends[b] <= begins[a] + 1e-9


def test_a_start_that_is_longer_than_the_horizon_is_an_answer_and_no_hint(monkeypatch):
    """The horizon is that of one device: 2 s. What the memories admit as well takes 11 s."""
    problem = printed({"a": (1.0, 9.0), "b": (1.0, 9.0)}, {("a", "b"): 1.0})
    formulation = formulate(problem, "moirai", with_rows=False)

    def no_hint(model, until, gap, told):
        assert not model.proto.solution_hint.vars
        return cp_sat.Ended(0.0, infeasible=False, words="time limit")

    monkeypatch.setattr(cp_sat, "search", no_hint)
    answer = moirai_intervals.solve(formulation, [np.array([0, 1])], 60.0, 0.0)
    assert answer.values is not None
    assert answer.objective * formulation.horizon_seconds == pytest.approx(11.0)


def test_a_start_that_cp_sat_denies_is_a_contradiction(monkeypatch):
    formulation = formulate(fork(0.5), "moirai", with_rows=False)
    ended = cp_sat.Ended(0.0, infeasible=True, words="infeasible")
    monkeypatch.setattr(cp_sat, "search", lambda *given: ended)
    with pytest.raises(AssertionError, match="denies the schedule"):
        moirai_intervals.solve(formulation, [np.zeros(3, dtype=np.int64)], 10.0, 0.0)


def test_a_bound_above_the_start_is_cut_within_the_rounding_only(monkeypatch):
    """Three operators and two flows: two ticks and a half."""
    problem = fork(0.5)
    formulation, starts = formulate(problem, "moirai", with_rows=False), starting_devices(problem)
    known = best_schedule(formulation, starts)
    assert known is not None
    exact = known.step / formulation.horizon_seconds

    def bound_above(ticks):
        bound = exact * moirai_intervals._TICKS + ticks
        ended = cp_sat.Ended(bound, infeasible=False, words="time limit")
        monkeypatch.setattr(cp_sat, "search", lambda *given: ended)
        return moirai_intervals.solve(formulation, starts, 10.0, 0.0)

    assert bound_above(2.5).bound == pytest.approx(exact, rel=1e-12)
    with pytest.raises(AssertionError, match=r"moirai: the solver's bound .* is above a step"):
        bound_above(4.0)


def test_ticks_lengthen_a_schedule_by_no_more_than_is_allowed_for(monkeypatch):
    """With a hundred ticks for the horizon, they lift some optimum above a known schedule."""
    monkeypatch.setattr(moirai_intervals, "_TICKS", 100)
    lifted = 0
    for seed in range(12):
        problem = drawn(seed, 6, 2)
        formulation = formulate(problem, "moirai", with_rows=False)
        begun = moirai_intervals.solve(formulation, starting_devices(problem), 60.0, 0.0)
        alone = moirai_intervals.solve(formulation, [], 60.0, 0.0)
        assert begun.bound <= begun.objective
        lifted += alone.bound > begun.objective
    assert lifted > 0
