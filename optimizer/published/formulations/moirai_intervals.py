"""Solves Moirai's program with CP-SAT: the constraints of moirai.py without large numbers.

The paper writes (6) and (8) with an indicator of which of two comes first. They say that intervals
do not overlap: operators on their device, and flows on the device that they leave and on the device
that they reach. Here these are optional intervals, present where the operator or the flow is. Times
are whole ticks, rounded to the nearest. Where one device holds everything, the search begins with a
hint: all operators there, in the recorded sort, which takes as long as the horizon.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.published.formulations.answer import NO_ANSWER, Answer, Heard
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.papers import Formulation

_TICKS = 10_000_000
_WORKERS = 2
# Optional intervals of all devices together; with more, the model takes minutes to build.
_MOST_INTERVALS = 300_000


def solve(
    formulation: Formulation,
    instance: Instance,
    seconds: float,
    gap: float,
    heard: Heard | None = None,
) -> Answer:
    """Solves within about `seconds`, to the relative gap. Of an answer's values only x and the
    operators' starts are set."""
    from ortools.sat.python import cp_model

    until = time.monotonic() + seconds
    built = _Model(formulation, instance)
    rounds = 0

    class Told(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            nonlocal rounds
            rounds += 1
            if heard is not None:
                best = self.objective_value / _TICKS, self.best_objective_bound / _TICKS
                values = _values(formulation, built, self.value)
                heard(Answer(values, *best, infeasible=False, words="time limit", rounds=rounds))

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(until - time.monotonic(), 0.01)
    solver.parameters.num_workers = _WORKERS
    solver.parameters.relative_gap_limit = gap
    # Probing every literal beforehand takes longer here than it saves.
    solver.parameters.cp_model_probing_level = 0
    status = solver.solve(built.model, Told())
    ended = {cp_model.OPTIMAL: "within the gap", cp_model.INFEASIBLE: "infeasible"}
    answer = replace(
        NO_ANSWER, words=ended.get(status, "time limit"),
        infeasible=status == cp_model.INFEASIBLE, rounds=max(rounds, 1),
    )  # fmt: skip
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return answer
    return replace(
        answer, values=_values(formulation, built, solver.value),
        objective=solver.objective_value / _TICKS, bound=solver.best_objective_bound / _TICKS,
    )  # fmt: skip


def _values(formulation: Formulation, built: _Model, value: Callable[[Any], int]) -> FloatArray:
    assert formulation.start is not None
    values = np.zeros(formulation.draft.columns.count)
    for i, column in enumerate(formulation.start.tolist()):
        values[column] = value(built.start[i]) / _TICKS
        for k, literal in enumerate(built.on[i]):
            values[formulation.x[i, k]] = value(literal)
    return values


def interval_count(instance: Instance) -> int:
    """The number of optional intervals."""
    return instance.devices * (instance.operators + 2 * len(instance.edges[0]))


def refuse_too_large(instance: Instance) -> None:
    """Raises FormulationTooLargeError."""
    count = interval_count(instance)
    if count > _MOST_INTERVALS:
        raise FormulationTooLargeError(
            f"moirai is too large: {count:,} optional intervals, of which at most "
            f"{_MOST_INTERVALS:,} are tried over cp-sat. Engine auto takes graphs of this size; a "
            "reduction makes them smaller (--reduction thesis)"
        )


class _Model:
    """The CP-SAT model; of the operators, on [n][D] are literals and start [n] ticks."""

    def __init__(self, formulation: Formulation, instance: Instance) -> None:
        from ortools.sat.python import cp_model

        self.model: Any = cp_model.CpModel()
        self.instance, self.network = instance, formulation.network
        self.tick = formulation.horizon_seconds / _TICKS
        self.ticks = np.round(instance.seconds / self.tick).astype(np.int64).tolist()
        # Rounding may add half a tick to each operator.
        self.latest = _TICKS + instance.operators
        self.step = self._time()
        # (tail, [start, end], [the variables that are 0 where the flow does not travel]) per flow.
        self.flows: list[tuple[int, list[Any], list[Any]]] = []
        n, devices = instance.operators, range(instance.devices)
        self.on = [[self.model.new_bool_var("") for _ in devices] for _ in range(n)]
        self.start = [self._time() for _ in range(n)]
        self.end = [self._ends(i) for i in range(n)]
        self._places()
        self._operators()
        self._flows()
        self.model.minimize(self.step)
        self._tell_of_one_device()

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.latest, "")

    def _tell_of_one_device(self) -> None:
        instance, model, fits = self.instance, self.model, self.instance.holds_everything
        if not fits.any():
            return
        at, end = 0, [0] * instance.operators
        d = int(np.where(fits, instance.seconds.sum(axis=0), np.inf).argmin())
        for i in instance.problem.graph.topological_order.tolist():
            model.add_hint(self.start[i], at)
            for k, literal in enumerate(self.on[i]):
                model.add_hint(literal, k == d)
            end[i] = at = at + self.ticks[i][d]
        model.add_hint(self.step, at)
        for i, times, literals in self.flows:
            for moment in times:
                model.add_hint(moment, end[i])
            for literal in literals:
                model.add_hint(literal, 0)

    def _ends(self, i: int) -> Any:
        """The end of operator i; adds (4b)."""
        took = sum(size * x for size, x in zip(self.ticks[i], self.on[i], strict=True))
        self.model.add(self.step >= self.start[i] + took)
        return self.start[i] + took

    def _places(self) -> None:
        """Adds (4c), (5) and co-location."""
        model, instance = self.model, self.instance
        for row, able in zip(self.on, instance.able.tolist(), strict=True):
            model.add_exactly_one(row)
            for literal, can in zip(row, able, strict=True):
                if not can:
                    model.add(literal == 0)
        for d, room in enumerate(instance.problem.cluster.memory_bytes.tolist()):
            held = instance.memory_bytes.tolist()
            if sum(held) > room:
                model.add(sum(b * row[d] for b, row in zip(held, self.on, strict=True)) <= room)
        for group in instance.groups:
            for i in group[1:].tolist():
                for one, other in zip(self.on[int(group[0])], self.on[i], strict=True):
                    model.add(one == other)

    def _operators(self) -> None:
        """Adds (6)."""
        for d in range(self.instance.devices):
            self.model.add_no_overlap(
                self.model.new_optional_fixed_size_interval_var(at, ticks[d], row[d], "")
                for at, ticks, row in zip(self.start, self.ticks, self.on, strict=True)
            )

    def _flows(self) -> None:
        """Adds (4a), (7) and (8)."""
        model, devices = self.model, range(self.instance.devices)
        leaving: list[list[Any]] = [[] for _ in devices]
        reaching: list[list[Any]] = [[] for _ in devices]
        for i, j, bits in zip(*(column.tolist() for column in self.instance.edges), strict=True):
            if bits == 0:
                model.add(self.end[i] <= self.start[j])
                continue
            start, end = self._time(), self._time()
            took, used = self._took(i, j, bits)
            self.flows.append((i, [start, end], [took, *used]))
            model.add(end == start + took)
            model.add(self.end[i] <= start)
            model.add(end <= self.start[j])
            for d in devices:
                here, there = self.on[i][d], self.on[j][d]
                for first, second, busy in ((here, there, leaving), (there, here, reaching)):
                    travels = model.new_bool_var("")  # first and not second
                    model.add_bool_or(~first, second, travels)
                    model.add_implication(travels, first)
                    model.add_implication(travels, ~second)
                    self.flows[-1][2].append(travels)
                    busy[d].append(model.new_optional_interval_var(start, took, end, travels, ""))
        for busy in (leaving, reaching):
            for intervals in busy:
                model.add_no_overlap(intervals)

    def _took(self, i: int, j: int, bits: float) -> tuple[Any, list[Any]]:
        """(ticks that a flow takes, u of (7) for each pair of devices that can be used); forbids
        the other pairs."""
        model, network = self.model, self.network
        took, channels = 0, []
        seconds = (network.latency + bits * network.per_bit) / self.tick
        for a, b, ticks in zip(
            network.source.tolist(), network.target.tolist(), seconds.tolist(), strict=True
        ):
            if not ticks <= self.latest:
                model.add_bool_or(~self.on[i][a], ~self.on[j][b])
                continue
            used = model.new_bool_var("")
            model.add_bool_or(~self.on[i][a], ~self.on[j][b], used)
            model.add_implication(used, self.on[i][a])
            model.add_implication(used, self.on[j][b])
            took += round(ticks) * used
            channels.append(used)
        duration = self._time()
        model.add(duration == took)
        return duration, channels
