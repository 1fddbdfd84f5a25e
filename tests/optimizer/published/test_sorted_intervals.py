"""Tests the programs of the thesis and of QuickP over CP-SAT: their rounding, and their starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations import (
    cp_sat,
    engine,
    gurobi,
    highs,
    limits,
    moirai_intervals,
    sorted_intervals,
)
from placewire.optimizer.published.formulations.answer import NO_ANSWER
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.known_start import best_start
from placewire.optimizer.published.formulations.papers import PaperName, formulate
from placewire.optimizer.published.formulations.program import OBJECTIVE
from placewire.optimizer.published.formulations.starts import starting_devices
from placewire.optimizer.published.formulations.whole_numbers import WholeNumbers
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster
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
    """Those of the search from one device and HEFT."""
    formulation = formulate(problem, name, with_rows=False)
    begun = best_start(formulation, starting_devices(problem))
    assert begun is not None
    return WholeNumbers(formulation, begun.seconds)


def allowed(problem: Problem, name: PaperName, step: float) -> float:
    """The stated rounding, in seconds."""
    whole = whole_numbers(problem, name)
    return step * whole.rate_rounding + whole.seconds * whole.time_rounding


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


@pytest.mark.parametrize("name", PAPERS)
def test_the_shorter_of_one_device_and_heft_is_a_whole_hint(name, monkeypatch):
    """CP-SAT may take a hint as it is: every variable has its value."""
    problem = odd(9, 8)
    formulation = formulate(problem, name, with_rows=False)
    seen = []

    def hint_alone(model, until, gap, told):
        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        assert solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE), model.validate()
        assert len(model.proto.solution_hint.vars) == len(model.proto.variables)
        seen.append(solver.objective_value)
        return cp_sat.Ended(0.0, infeasible=False, words="the hint")

    monkeypatch.setattr(cp_sat, "search", hint_alone)
    devices = starting_devices(problem)
    assert len(devices) == 2
    steps = []
    for starts in ([devices[0]], [devices[1]], devices):
        answer = sorted_intervals.solve(formulation, starts, 10.0, 0.0)
        steps.append(answer.objective)
        # A step that the search begins with has all ticks of its horizon.
        ticks = seen[-1] / whole_numbers(problem, name).horizon
        assert ticks == pytest.approx(1.0, rel=1e-3)
    assert steps[2] == min(steps[:2])


def test_a_start_beyond_the_static_memory_is_no_start():
    """Nine operators of 157 bytes do not fit on one device of 800: HEFT's placement may."""
    problem = replace(odd(9, 8), cluster=cluster(3, (1e6,), memory=800))
    instance = Instance(problem)
    assert not instance.admits(np.zeros(9, dtype=np.int64))
    spread = np.arange(9) % 3
    assert instance.admits(spread)
    formulation = formulate(problem, "thesis-p1", with_rows=False)
    alone = np.zeros(9, dtype=np.int64)
    assert best_start(formulation, [alone]) is None
    begun = best_start(formulation, [alone, spread])
    assert begun is not None and begun.device is spread
    answer = sorted_intervals.solve(formulation, [alone], 60.0, 0.0)
    assert answer.values is not None
    assert instance.admits(answer.values[formulation.x].argmax(axis=1))


@pytest.mark.parametrize("name", ["thesis-p1", "thesis-p3"])
def test_placed_through_the_registry_the_answer_holds(name):
    problem = replace(odd(6, 9, grouped=True), model="contended")
    heard: list[Any] = []
    placement = place(problem, name, replace(OVER_CP_SAT, gap=0.01), "auto", heard.append)
    assert check(problem.graph, placement) == ()
    assert any(f"{name} over cp-sat: " in progress.words for progress in heard)


@pytest.mark.parametrize("name", ["thesis-p1", "thesis-p2", "moirai"])
def test_the_size_is_that_of_what_is_built(name):
    """A size counts what the model has for each operator and tensor, and hence nearly all of it."""
    problem = odd(60, 4)
    formulation = formulate(problem, name, with_rows=False)
    if name == "moirai":
        built = moirai_intervals._Model(formulation).model
    else:
        built = sorted_intervals._Model(formulation, WholeNumbers(formulation), None).model
    size = limits.cp_sat_parts(formulation)
    assert 0.9 * size <= len(built.proto.constraints) <= 1.1 * size


@pytest.mark.parametrize(("name", "operators"), [("thesis-p2", 26_000), ("moirai", 15_000)])
def test_what_is_too_large_is_refused_before_starts_are_made(name, operators, monkeypatch):
    rows = [OperatorRow(f"o{k}", "op", {"cpu": 1e-3}) for k in range(operators)]
    tensors = [TensorRow(f"o{k}", (f"o{k + 1}",), 1000) for k in range(operators - 1)]
    problem = Problem(build_graph(rows, tensors), cluster(4))
    monkeypatch.setattr(engine, "starting_devices", lambda problem: pytest.fail("too late"))
    with pytest.raises(
        FormulationTooLargeError, match=r"1,\d\d\d,\d\d\d intervals, rows and clauses"
    ):
        solve(name, problem, OVER_CP_SAT)


def test_a_bound_above_the_answer_and_a_denied_start_are_contradictions(monkeypatch):
    problem = odd(9, 8)
    formulation = formulate(problem, "thesis-p1", with_rows=False)
    starts = starting_devices(problem)
    for ended, words in (
        (cp_sat.Ended(0.0, infeasible=True, words="infeasible"), "denies the placement"),
        (cp_sat.Ended(1e12, infeasible=False, words="within the gap"), "above a step"),
    ):
        monkeypatch.setattr(cp_sat, "search", lambda *given, ended=ended: ended)
        with pytest.raises(AssertionError, match=words):
            sorted_intervals.solve(formulation, starts, 10.0, 0.0)


@pytest.mark.parametrize("solver", ["highs", "gurobi"])
@pytest.mark.parametrize("name", ["thesis-p1", "thesis-p2", "moirai"])
def test_a_bound_above_what_is_known_is_cut_within_tolerance_only(name, solver, monkeypatch):
    """The solver found nothing, so that the start is the answer: a bound that is wrong must not
    make it the optimum."""
    problem = odd(6, 9)
    settings = replace(EXACT, options={"solver": solver})
    module = {"highs": highs, "gurobi": gurobi}[solver]

    def bound_above(above):
        def solve(program, *given):
            return replace(NO_ANSWER, bound=float(program.high[OBJECTIVE]) + above, words="over")

        return solve

    monkeypatch.setattr(module, "solve", bound_above(0.5e-6))
    _, last = solved(problem, name, settings)
    assert last.bound_seconds == last.incumbent_seconds
    monkeypatch.setattr(module, "solve", bound_above(1e-4))
    with pytest.raises(AssertionError, match=rf"{name}: the solver's bound .* is above a step"):
        solved(problem, name, settings)


def behind_a_slow_nic(memory: int) -> Problem:
    """Six operators of 1 ms, of which the first sends 10 to 50 MB; the fourth server's NIC would
    need minutes for them."""
    rows = [OperatorRow(f"o{k}", "op", {"cpu": 1e-3}, weight_bytes=100) for k in range(6)]
    tensors = [TensorRow("o0", (f"o{k}",), k * 10**7) for k in range(1, 6)]
    held = Device(type="cpu", memory_bytes=memory)
    servers = tuple(
        Server(name=f"s{k}", devices=(held,), nics=(Nic(rail="a", rate_bits_per_second=rate),))
        for k, rate in enumerate((1e11, 1e11, 1e11, 1e6))
    )
    where = Cluster(servers=servers, setup_latency_seconds=0.0, intra_server_bits_per_second=1e9)
    return Problem(build_graph(rows, tensors), where, "strict", "thesis")


def test_ticks_are_of_the_start_where_no_device_holds_everything():
    """The horizon is 20 minutes then, and a step 4 ms."""
    problem = behind_a_slow_nic(400)
    assert formulate(problem, "thesis-p1").horizon_seconds > 1000.0
    _, last = solved(problem, "thesis-p1", replace(OVER_CP_SAT, gap=0.01))
    assert last.incumbent_seconds == pytest.approx(4e-3)
    assert 0.99 * last.incumbent_seconds <= last.bound_seconds <= last.incumbent_seconds
    assert "over cp-sat: within the gap;" in last.words


def test_without_a_start_it_says_that_the_rounding_is_beyond_the_gap():
    formulation = formulate(behind_a_slow_nic(400), "thesis-p1", with_rows=False)
    answer = sorted_intervals.solve(formulation, [], 60.0, 0.01)
    assert answer.bound < 0.99 * answer.objective
    assert answer.words == "within the gap but for rounding to whole numbers"
