"""Solves Moirai's program with CP-SAT: the constraints of moirai.py without large numbers.

The paper writes (6) and (8) with an indicator of which of two comes first. They say that intervals
do not overlap: operators on their device, and flows on the device that they leave and on the device
that they reach. Here these are optional intervals, present where the operator or the flow is. Times
are whole ticks, rounded to the nearest. The search begins with the best of the starts
(moirai_start.py), and the answer is never worse.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.published.formulations import cp_sat
from placewire.optimizer.published.formulations.answer import Answer, Heard, no_bound_above
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.moirai_start import (
    Schedule,
    best_schedule,
    known_answer,
    schedule,
)
from placewire.optimizer.published.formulations.own_step import transfer_seconds
from placewire.optimizer.published.formulations.papers import Formulation

_TICKS = 10_000_000


def solve(
    formulation: Formulation,
    starts: Sequence[IntArray],
    seconds: float,
    gap: float,
    heard: Heard | None = None,
) -> Answer:
    """Solves within about `seconds`, to the relative gap. starts: devices int64[n]. Of an answer's
    values only x and the operators' starts are set."""
    until = time.monotonic() + seconds
    begun = best_schedule(formulation, starts)
    best = known_answer(formulation, begun)
    built = _Model(formulation)
    if begun is not None:
        built.begin(begun)
        if heard is not None:
            heard(best)

    def told(value: cp_sat.Value, objective: float, bound: float) -> None:
        nonlocal best
        best = replace(best, rounds=best.rounds + 1)
        if objective / _TICKS >= best.objective:
            return
        best = replace(
            best, values=_values(formulation, built, value), objective=objective / _TICKS,
            bound=bound / _TICKS, words="time limit",
        )  # fmt: skip
        if heard is not None:
            heard(best)

    ended = cp_sat.search(built.model, until, gap, told)
    if ended.infeasible and begun is not None:
        raise AssertionError("moirai: cp-sat denies the schedule that is known")
    bound = -np.inf
    if not ended.infeasible:
        rounding = _rounding(formulation.instance)
        bound = no_bound_above(best.objective, ended.bound / _TICKS, rounding, formulation.name)
    return replace(
        best, words=ended.words, infeasible=ended.infeasible, rounds=max(best.rounds, 1),
        bound=bound,
    )  # fmt: skip


def _rounding(instance: Instance) -> float:
    """By how much ticks may lengthen a schedule that is not rounded: each operator and each flow by
    half of one. One more half is far above what floats lose."""
    return (instance.operators + len(instance.edges[0]) + 1) / 2 / _TICKS


def _values(formulation: Formulation, built: _Model, value: cp_sat.Value) -> FloatArray:
    assert formulation.start is not None
    values = np.zeros(formulation.draft.columns.count)
    for i, column in enumerate(formulation.start.tolist()):
        values[column] = value(built.start[i]) / _TICKS
        for k, literal in enumerate(built.on[i]):
            values[formulation.x[i, k]] = value(literal)
    return values


def part_count(instance: Instance) -> int:
    """The number of intervals, rows and clauses: an interval for an operator on each device; for a
    flow four rows, three clauses for each pair of devices, and on each device two intervals with
    three clauses each."""
    d, edges = instance.devices, len(instance.edges[0])
    return d * instance.operators + edges * (4 + 3 * d * (d - 1) + 8 * d)


@dataclass(frozen=True)
class _Flow:
    """The data flow of an edge: its start, ticks and end; channels: by pair of devices, the literal
    that is true where it takes them; travels: by device, the literals that are true where it leaves
    it, and where it reaches it."""

    edge: int
    tail: int
    head: int
    times: tuple[Any, Any, Any]
    channels: dict[tuple[int, int], Any]
    travels: list[tuple[Any, Any]] = field(default_factory=list)


class _Model:
    """The CP-SAT model; of the operators, on [n][D] are literals and start [n] ticks."""

    def __init__(self, formulation: Formulation) -> None:
        from ortools.sat.python import cp_model

        instance = formulation.instance
        self.model: Any = cp_model.CpModel()
        self.instance, self.network = instance, formulation.network
        self.tick = formulation.horizon_seconds / _TICKS
        self.ticks = np.round(instance.seconds / self.tick).astype(np.int64).tolist()
        # Rounding may add half a tick to each operator.
        self.latest = _TICKS + instance.operators
        self.step = self._time()
        self.flows: list[_Flow] = []
        n = instance.operators
        self.on = cp_sat.places(self.model, instance, instance.able)  # (4c), (5) and co-location
        self.start = [self._time() for _ in range(n)]
        self.end = [self._ends(i) for i in range(n)]
        self._operators()
        self._flows()
        self.model.minimize(self.step)

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.latest, "")

    def begin(self, begun: Schedule[float]) -> None:
        """Hints at this schedule, or at nothing where it takes longer than the horizon."""
        if begun.step / self.tick > self.latest:
            return
        instance, device = self.instance, begun.device.tolist()
        seconds = transfer_seconds(instance, self.network, begun.device, None)
        late = np.round(seconds / self.tick).astype(np.int64).tolist()
        took = [ticks[d] for ticks, d in zip(self.ticks, device, strict=True)]
        found = schedule(instance, begun.device, took, late)
        if found.step > self.latest:
            return
        hint = self.model.add_hint
        cp_sat.hint_places(self.model, self.on, begun.device)
        hint(self.step, found.step)
        for variable, at in zip(self.start, found.start, strict=True):
            hint(variable, at)
        for flow in self.flows:
            ends = device[flow.tail], device[flow.head]
            at, lasts = found.flows[flow.edge], late[flow.edge]
            for variable, known in zip(flow.times, (at, lasts, at + lasts), strict=True):
                hint(variable, known)
            for channel, used in flow.channels.items():
                hint(used, channel == ends)
            for d, (leaves, reaches) in enumerate(flow.travels):
                here, there = ends[0] == d, ends[1] == d
                hint(leaves, here and not there)
                hint(reaches, there and not here)

    def _ends(self, i: int) -> Any:
        """The end of operator i; adds (4b)."""
        took = sum(size * x for size, x in zip(self.ticks[i], self.on[i], strict=True))
        self.model.add(self.step >= self.start[i] + took)
        return self.start[i] + took

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
        for e, (i, j, bits) in enumerate(
            zip(*(column.tolist() for column in self.instance.edges), strict=True)
        ):
            if bits == 0:
                model.add(self.end[i] <= self.start[j])
                continue
            start, took, end = self._time(), self._time(), self._time()
            channels = self._channels(i, j, bits)
            literals = {ends: used for ends, (_, used) in channels.items()}
            flow = _Flow(e, i, j, (start, took, end), literals)
            self.flows.append(flow)
            model.add(took == sum(ticks * used for ticks, used in channels.values()))
            model.add(end == start + took)
            model.add(self.end[i] <= start)
            model.add(end <= self.start[j])
            for d in devices:
                here, there = self.on[i][d], self.on[j][d]
                ends = []
                for first, second, busy in ((here, there, leaving), (there, here, reaching)):
                    travels = model.new_bool_var("")  # first and not second
                    model.add_bool_or(~first, second, travels)
                    model.add_implication(travels, first)
                    model.add_implication(travels, ~second)
                    ends.append(travels)
                    busy[d].append(model.new_optional_interval_var(start, took, end, travels, ""))
                flow.travels.append((ends[0], ends[1]))
        for busy in (leaving, reaching):
            for intervals in busy:
                model.add_no_overlap(intervals)

    def _channels(self, i: int, j: int, bits: float) -> dict[tuple[int, int], tuple[int, Any]]:
        """By pair of devices that can be used, the ticks that a flow takes and u of (7); forbids
        the other pairs."""
        model, network = self.model, self.network
        channels = {}
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
            channels[a, b] = round(ticks), used
        return channels
