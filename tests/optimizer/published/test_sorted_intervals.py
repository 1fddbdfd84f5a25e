"""Tests the programs of the thesis and of QuickP over CP-SAT: their rounding, and their starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from placewire.optimizer.check.check import check
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations import cp_sat, sorted_intervals
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.own_step import own_step
from placewire.optimizer.published.formulations.papers import PaperName, formulate
from placewire.optimizer.published.formulations.starts import starting_devices
from placewire.optimizer.published.formulations.whole_numbers import WholeNumbers
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster, layered
from tests.optimizer.published.test_formulations import PAPERS, drawn

EXACT = SolveSettings(gap=0.0, time_limit_seconds=600.0)
OVER_CP_SAT = replace(EXACT, options={"solver": "cp-sat"})
DECIDED = ("thesis-p2", "thesis-p3")


def odd(n: int, seed: int, *, grouped: bool = False) -> Problem:
    """Times that no unit divides, and rates that give odd transfers."""
    made = drawn(n, seed, grouped=grouped)
    generator = np.random.default_rng(seed)
    times = made.seconds[:, 0] * generator.uniform(0.5, 1.5, n)
    where = cluster(3, (np.pi * 1e6, np.e * 1e6), latency=0.1234567)
    return Problem(made.with_seconds({"cpu": times}), where, "strict", "thesis")


def solved(problem: Problem, name: PaperName, settings: SolveSettings) -> tuple[Any, Any]:
    heard: list[Any] = []
    return solve(name, problem, settings, heard.append), heard[-1]


def whole_numbers(problem: Problem, name: PaperName) -> WholeNumbers:
    return WholeNumbers(formulate(problem, name, with_rows=False))


def allowed(problem: Problem, name: PaperName, step: float) -> float:
    """The stated rounding, in seconds."""
    whole = whole_numbers(problem, name)
    horizon = whole.formulation.horizon_seconds
    return step * whole.rate_rounding + horizon * whole.time_rounding


@pytest.mark.parametrize("seed", [21, 22, 23])
@pytest.mark.parametrize("name", PAPERS)
def test_cp_sat_and_highs_reach_the_same_objective_within_the_rounding(name, seed):
    problem = odd(7, seed, grouped=seed == 22)
    highs = solved(problem, name, EXACT)[1]
    found = solved(problem, name, OVER_CP_SAT)[1]
    rounding = allowed(problem, name, highs.incumbent_seconds)
    assert rounding < 1e-3 * highs.incumbent_seconds
    tolerance = 2e-6 * highs.incumbent_seconds  # of HiGHS
    assert found.incumbent_seconds >= highs.incumbent_seconds - tolerance
    assert found.incumbent_seconds <= highs.incumbent_seconds + rounding + tolerance
    # The bound is true, and as near as the rounding lets it be.
    assert found.bound_seconds <= highs.incumbent_seconds + tolerance
    assert found.bound_seconds >= highs.incumbent_seconds - 2 * rounding - tolerance


@pytest.mark.parametrize("name", PAPERS)
def test_what_it_says_is_what_its_model_simulates(name):
    """The answer's own step is exact: the simulator of model thesis has it, too."""
    if name.startswith("icc"):
        problem = replace(odd(8, 31), cluster=cluster(3, (np.pi * 1e6, np.e * 1e6)))
    else:
        problem = odd(8, 31)
    solution, last = solved(problem, name, OVER_CP_SAT)
    rates = solution.rates
    if rates is None:  # one bandwidth: that of the first rail
        rates = np.zeros((3, 3, 2))
        rates[:, :, 0] = np.pi * 1e6
    timeline = simulate(problem, solution.device, solution.priority, None, rates)
    assert timeline.step_seconds == pytest.approx(last.incumbent_seconds, rel=1e-9)


def test_ticks_change_a_step_by_less_than_is_stated():
    """Of random placements of graphs of several sizes, whose times no tick divides."""
    largest = 0.0
    stated = whole_numbers(odd(5, 1), "thesis-p2")
    assert stated.time_rounding < 1.1e-5 and stated.rate_rounding < 4e-4
    assert whole_numbers(odd(5, 1), "thesis-p1").time_rounding == 5e-6
    for n, seed in ((5, 1), (20, 2), (80, 3)):
        problem = odd(n, seed)
        for name in ("thesis-p1", "thesis-p2"):
            whole = whole_numbers(problem, name)
            instance, network = whole.instance, whole.network
            generator = np.random.default_rng(seed)
            for _ in range(20):
                device = generator.integers(0, 3, n)
                parts = whole.even_parts(device)
                rates = whole.rates(parts) if name == "thesis-p2" else None
                exact = own_step(instance, network, device, rates)
                _, ticks = sorted_intervals._in_ticks(instance, whole, device, parts)
                error = abs(ticks * whole.tick_seconds - exact) / whole.formulation.horizon_seconds
                assert error <= whole.time_rounding + exact * whole.rate_rounding
                assert name == "thesis-p2" or error <= whole.time_rounding
                largest = max(largest, error / whole.time_rounding)
    assert largest > 0.0


@pytest.mark.parametrize("name", PAPERS)
def test_the_shorter_of_one_device_and_heft_is_a_whole_hint(name, monkeypatch):
    """CP-SAT may take a hint as it is: every variable that decides something has its value."""
    problem = odd(9, 8)
    formulation = formulate(problem, name, with_rows=False)
    seen = []

    def hint_alone(model, until, gap, told):
        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        assert solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE), model.validate()
        seen.append(solver.objective_value)
        return cp_sat.Ended(0.0, infeasible=False, words="the hint")

    monkeypatch.setattr(cp_sat, "search", hint_alone)
    devices = starting_devices(problem)
    assert len(devices) == 2
    steps = []
    for starts in ([devices[0]], [devices[1]], devices):
        answer = sorted_intervals.solve(formulation, starts, 10.0, 0.0)
        steps.append(answer.objective)
        ticks = seen[-1] / whole_numbers(problem, name).horizon
        assert ticks == pytest.approx(answer.objective, rel=1e-3)
    assert steps[2] == min(steps[:2])


def test_a_start_beyond_the_static_memory_is_no_start():
    """Nine operators of 157 bytes do not fit on one device of 800: HEFT's placement may."""
    problem = replace(odd(9, 8), cluster=cluster(3, (1e6,), memory=800))
    instance = Instance(problem)
    assert not instance.admits(np.zeros(9, dtype=np.int64))
    assert instance.admits(np.arange(9) % 3)
    solution, _ = solved(problem, "thesis-p1", OVER_CP_SAT)
    assert instance.admits(solution.device)


@pytest.mark.parametrize("name", ["thesis-p1", "thesis-p3"])
def test_placed_through_the_registry_the_answer_holds(name):
    problem = replace(odd(6, 9, grouped=True), model="contended")
    heard: list[Any] = []
    placement = place(problem, name, replace(OVER_CP_SAT, gap=0.01), "auto", heard.append)
    assert check(problem.graph, placement) == ()
    assert any(f"{name} over cp-sat: " in progress.words for progress in heard)


def test_a_graph_on_which_highs_has_no_time_to_begin():
    """A hundred operators: P2 over CP-SAT ends within a gap of 15 %, shorter than one device."""
    where = cluster(4, (10e6, 10e6, 10e6), latency=1e-5)
    problem = Problem(layered(5, 4), where, "strict", "thesis")
    settings = replace(OVER_CP_SAT, gap=0.15, time_limit_seconds=120.0)
    _, last = solved(problem, "thesis-p2", settings)
    alone = float(problem.seconds[:, 0].sum())
    assert last.incumbent_seconds < 0.6 * alone
    assert last.bound_seconds >= 0.85 * last.incumbent_seconds


def test_what_is_too_large_is_refused_with_its_size():
    rows = [OperatorRow(f"o{k}", "op", {"cpu": 1e-3}) for k in range(26_000)]
    tensors = [TensorRow(f"o{k}", (f"o{k + 1}",), 1000) for k in range(25_999)]
    problem = Problem(build_graph(rows, tensors), cluster(4))
    with pytest.raises(FormulationTooLargeError, match="415,988 optional intervals"):
        solve("thesis-p2", problem, OVER_CP_SAT)
