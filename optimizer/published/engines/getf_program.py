"""Engine `getf-program`: the program of GETF in whole numbers, as Moirai compares with it.

Zhang et al., "Moirai" (2023), sections II-B and IV-A, call GETF an exact method, whose program in
whole numbers they solve with Gurobi. It is the program of Su et al. (arXiv 2004.14639) before these
relax it: x is 1 where an operator runs on a device; an operator ends at least its own time after
its parents; T is below no end, and not below the time that any device works. Transfers take no time
in it, which is what Moirai has against it. Engine `getf` is the algorithm that Su et al. make of
the relaxation.

Here x is the placement, and an operator is the earlier in the order the earlier it could start
without transfers. Moirai does not say what it does about memory: without a limit no placement of a
large model would fit, so that each device has a row for the static sum. The operators of a
co-location group have one x. HiGHS solves it, beginning with one device, and with HEFT.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.solution import Progress, Report, Solution
from placewire.optimizer.engines.units import mean_seconds
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.engines.shared.kinds import list_engine
from placewire.optimizer.published.formulations import child_process
from placewire.optimizer.published.formulations.answer import Answer
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.program import (
    NO_HYPERBOLAS,
    Columns,
    Program,
    RowWriter,
    Start,
)
from placewire.optimizer.published.formulations.starts import starting_devices


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """progress hears the solver's incumbent and bound by the program itself. So does a function in
    settings.options["own_progress"], as of formulations.engine. Raises InfeasibleError
    where the memories admit no placement, and OutOfTimeError."""
    until = deadline("getf-program", settings)
    unit = max(float(mean_seconds(problem).sum()), 1e-300)
    instance = Instance(problem)
    program, x = program_of(instance, unit)

    reports: list[Report | None] = [progress, settings.options.get("own_progress")]

    def heard(answer: Answer, words: str = "") -> None:
        step, bound = answer.objective * unit, max(answer.bound, 0.0) * unit
        seconds = settings.time_limit_seconds - until.left_seconds
        for report in reports:
            if report is not None:
                report(Progress(seconds, step, bound, answer.rounds, words))

    until.require("building its program")
    answer = child_process.solve(program, until.left_seconds, settings.gap, heard)
    heard(answer, f"getf-program over highs: {answer.words}")
    if answer.infeasible:
        raise InfeasibleError(
            "getf-program has no placement: it counts memory as a static sum; use engine auto, "
            "which counts the peak"
        )
    if answer.values is None:
        raise until.over("its mixed-integer program")
    device = answer.values[x].argmax(axis=1).astype(np.int64)
    return Solution(device, -_earliest(problem, device), None)


def program_of(instance: Instance, unit: float) -> tuple[Program, IntArray]:
    """(the program, the columns of x int64[n, D]); unit: of time, in seconds."""
    problem, (n, devices) = instance.problem, instance.seconds.shape
    columns, rows = Columns(), RowWriter()
    step = columns.add((1,), np.inf)
    x = columns.add((n, devices), instance.able, whole=True)
    end = columns.add((n,), np.inf)
    seconds = instance.seconds / unit
    rows.add(x, 1.0, 1.0, equal=True)
    for group in instance.groups:
        pairs = np.stack([x[group[:-1]], x[group[1:]]], axis=2).reshape(-1, 2)
        rows.add(pairs, [1.0, -1.0], 0.0, equal=True)
    rows.add(np.column_stack([end, x]), np.column_stack([-np.ones(n), seconds]), 0.0)
    i, j, _ = instance.edges
    if len(i):
        ones = np.ones(len(i))
        after = np.column_stack([end[i], end[j], x[j]])
        rows.add(after, np.column_stack([ones, -ones, seconds[j]]), 0.0)
    rows.add(np.stack([end, np.repeat(step, n)], axis=1), [1.0, -1.0], 0.0)
    held, room = instance.memory_bytes.astype(float), problem.cluster.memory_bytes
    for d in range(devices):
        busy = np.append(x[:, d], step)[None, :]
        rows.add(busy, np.append(seconds[:, d], -1.0)[None, :], 0.0)
        rows.add(x[:, d][None, :], held[None, :] / room[d], 1.0)
    matrix, limit, equal = rows.finish(columns.count)
    starts = tuple(
        Start(x.ravel(), (device[:, None] == np.arange(devices)).ravel().astype(np.float64))
        for device in starting_devices(problem)
        if instance.admits(device)
    )
    return Program(columns.high, columns.whole, matrix, limit, equal, NO_HYPERBOLAS, starts), x


def _earliest(problem: Problem, device: IntArray) -> FloatArray:
    """float64[n]: when each operator could start on its device if nothing took time to send."""
    graph, start = problem.graph, np.zeros(len(device))
    source, target, _ = graph.edges
    took = problem.seconds[np.arange(len(device)), device]
    by_reader = np.argsort(graph.position[target], kind="stable")
    for i, j in zip(source[by_reader].tolist(), target[by_reader].tolist(), strict=True):
        start[j] = max(start[j], start[i] + took[i])
    return start


ENGINE = list_engine(
    "mixed-integer program without transfers", solve, paper="Su et al., GETF (2020)",
    section="as Moirai (2023) has it, IV-A", sees="nothing", memory="static sum: a constraint",
)  # fmt: skip
