"""Sizes, builds and solves a published formulation, and makes the answer a Solution."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.solution import Progress, Report, Solution
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.formulations import child_process, gurobi, highs, moirai_start
from placewire.optimizer.published.formulations.answer import Answer, no_bound_above
from placewire.optimizer.published.formulations.errors import NoIncumbentError
from placewire.optimizer.published.formulations.known_start import best_start, known_answer
from placewire.optimizer.published.formulations.limits import refuse_too_large
from placewire.optimizer.published.formulations.network import rates_per_rail
from placewire.optimizer.published.formulations.own_step import used_pairs
from placewire.optimizer.published.formulations.papers import Formulation, PaperName, formulate
from placewire.optimizer.published.formulations.program import OBJECTIVE, Program, Start
from placewire.optimizer.published.formulations.solver import SolverName
from placewire.optimizer.published.formulations.starts import starting_devices
from placewire.optimizer.quantities import format_step


def solve(
    name: PaperName, problem: Problem, settings: SolveSettings, progress: Report | None = None
) -> Solution:
    """The optimum under the paper's own model, whatever the problem's, within settings.gap and
    settings.time_limit_seconds; progress hears the solver's incumbent, bound and status, by that
    model. So does a function in settings.options["own_progress"]: what progress hears may be joined
    with figures of other models on its way to whoever asked.

    Raises FormulationTooLargeError before building, FormulationRefusedError for an unsuitable
    cluster, a sort that the problem's model does not have or a solver that is missing,
    SolverCrashedError, InfeasibleError where (3.2) admits no placement, NoIncumbentError where the
    time was too short to find one.
    """
    began = time.monotonic()
    solver = solver_of(name, settings.options.get("solver", "auto"))
    sort = settings.options.get("sort", "auto")
    formulation = formulate(problem, name, with_rows=solver != "cp-sat", sort=sort)
    refuse_too_large(formulation, solver)
    horizon = formulation.horizon_seconds
    reports: list[Report | None] = [progress, settings.options.get("own_progress")]

    def heard(answer: Answer, words: str = "") -> None:
        seconds, bound = time.monotonic() - began, max(answer.bound, 0.0) * horizon
        for report in reports:
            if report is not None:
                report(Progress(seconds, answer.objective * horizon, bound, answer.rounds, words))

    known, starts = _known(formulation, starting_devices(problem))
    if known.values is not None:
        heard(known)
    if solver == "cp-sat":
        left = max(began + settings.time_limit_seconds - time.monotonic(), 0.0)
        answer = child_process.solve_intervals(formulation, starts, left, settings.gap, heard)
    else:
        program = _from(formulation, known, starts)
        left = max(began + settings.time_limit_seconds - time.monotonic(), 0.0)
        if solver == "gurobi":
            answer = gurobi.solve(program, left, settings.gap)
        else:
            answer = child_process.solve(program, left, settings.gap, heard)
    answer = _better(name, known, answer)
    heard(answer, f"{name} over {solver}: {_said(formulation, answer)}")
    if answer.values is None:
        raise _why_nothing(problem, name, solver, answer)
    device = answer.values[formulation.x].argmax(axis=1).astype(np.int64)
    priority = -np.argsort(formulation.instance.order).astype(np.float64)
    if formulation.start is not None:
        priority = -answer.values[formulation.start]
    return Solution(device, priority, _rates(problem, formulation, answer.values, device))


def _known(formulation: Formulation, starts: list[IntArray]) -> tuple[Answer, list[IntArray]]:
    """(the answer that needs no solver, the devices with which a solver begins)"""
    if formulation.start is not None:
        # The order is decided, too: a solver may find that another start has the better one.
        known = moirai_start.best_schedule(formulation, starts)
        return moirai_start.known_answer(formulation, known), starts
    start = best_start(formulation, starts)
    return known_answer(formulation, start), starts if start is None else [start.device]


def _from(formulation: Formulation, known: Answer, starts: Sequence[IntArray]) -> Program:
    """The program from these starts, in which no answer takes longer than the known one."""
    devices = np.arange(formulation.x.shape[1])
    program = formulation.draft.build()
    high = program.high.copy()
    high[OBJECTIVE] = min(high[OBJECTIVE], known.objective * (1 + highs.TOLERANCE))
    begun = tuple(
        Start(formulation.x.ravel(), (device[:, None] == devices).ravel().astype(np.float64))
        for device in starts
    )
    return replace(program, high=high, starts=begun)


def _better(name: PaperName, known: Answer, found: Answer) -> Answer:
    """The better of what was known and what a solver found that looked for nothing worse. Its
    program lets a step be TOLERANCE longer than the known one (_from), and its solver's own
    tolerances are at most as much of the horizon."""
    if known.values is None or found.objective <= known.objective:
        return found
    if found.infeasible:
        return replace(known, bound=known.objective, words="within the gap", rounds=found.rounds)
    rounding = highs.TOLERANCE * (known.objective + 1.0)
    bound = no_bound_above(known.objective, found.bound, rounding, name)
    return replace(known, bound=bound, words=found.words, rounds=found.rounds)


def solver_of(name: PaperName, asked: SolverName) -> SolverName:
    """The solver that `asked` stands for."""
    if asked == "auto":
        return "cp-sat" if name == "moirai" else "highs"
    return asked


def _said(formulation: Formulation, answer: Answer) -> str:
    size, horizon = formulation.draft.size, formulation.horizon_seconds
    found = "no incumbent"
    if answer.values is not None:
        best = format_step(answer.objective * horizon)
        bound = format_step(max(answer.bound, 0.0) * horizon)
        found = f"{best} by its own model, bound {bound}"
    rows = f"{size.rows} rows, " if size.rows else ""
    return f"{answer.words}; {found}; {rows}{size.columns} columns"


def _rates(
    problem: Problem, formulation: Formulation, values: FloatArray, device: IntArray
) -> FloatArray | None:
    """None where the paper decides no rates, or the problem's sharing has none. What a solver left
    for pairs that send nothing is dropped: (3.7) limits no receiver, and where the problem's model
    does, it would be taken from those that send."""
    transfers, network = formulation.transfers, formulation.network
    if transfers.rate is None or not problem.decides_rates:
        return None
    decided = values[transfers.rate] * transfers.rate_unit
    used = used_pairs(formulation.instance, network, device)
    return rates_per_rail(problem, network, np.where(used, decided, 0.0))


def _why_nothing(
    problem: Problem, name: PaperName, solver: SolverName, answer: Answer
) -> ValueError:
    if answer.infeasible:
        graph, memory = problem.graph, problem.cluster.memory_bytes
        static = graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes
        return InfeasibleError(
            f"{name} has no placement: the papers count memory as a static sum (3.2), here "
            f"{math.fsum(static.tolist()) / 2**20:.1f} MiB in all, and all devices together have "
            f"{math.fsum(memory.tolist()) / 2**20:.1f} MiB; use engine auto, which counts the peak"
        )
    return NoIncumbentError(
        f"{name}: {solver} found no placement in time ({answer.words}); allow more "
        "(--time-limit), reduce the graph, or use engine auto"
    )
