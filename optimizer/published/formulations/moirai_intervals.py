"""Solves Moirai's program with CP-SAT: the constraints of moirai.py without large numbers.

The paper writes (6) and (8) with an indicator of which of two comes first. They say that intervals
do not overlap: operators on their device, and flows on the device that they leave and on the device
that they reach. Here these are optional intervals, present where the operator or the flow is. Times
are whole ticks, rounded to the nearest. The search begins with the shortest of the starts that the
memories admit: operators in the recorded sort, each flow when both of its devices are free for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.published.formulations import cp_sat
from placewire.optimizer.published.formulations.answer import NO_ANSWER, Answer, Heard
from placewire.optimizer.published.formulations.instance import Instance
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
    instance = formulation.instance
    built = _Model(formulation)
    built.begin([device for device in starts if instance.admits(device)])
    best = NO_ANSWER

    def told(value: cp_sat.Value, objective: float, bound: float) -> None:
        nonlocal best
        best = Answer(
            _values(formulation, built, value), objective / _TICKS, bound / _TICKS,
            infeasible=False, words="time limit", rounds=best.rounds + 1,
        )  # fmt: skip
        if heard is not None:
            heard(best)

    ended = cp_sat.search(built.model, until, gap, told)
    return replace(
        best, words=ended.words, infeasible=ended.infeasible, rounds=max(best.rounds, 1),
        bound=-np.inf if ended.infeasible else ended.bound / _TICKS,
    )  # fmt: skip


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
    """A data flow between two operators: its start, ticks and end; channels: by pair of devices,
    its ticks and the literal that is true where it takes them; travels: by device, the literals
    that are true where it leaves it, and where it reaches it."""

    tail: int
    head: int
    times: tuple[Any, Any, Any]
    channels: dict[tuple[int, int], tuple[int, Any]]
    travels: list[tuple[Any, Any]] = field(default_factory=list)

    def took(self, device: Sequence[int]) -> int | float:
        """Its ticks for these devices; inf where they cannot be used."""
        ends = device[self.tail], device[self.head]
        return 0 if ends[0] == ends[1] else self.channels.get(ends, (math.inf, None))[0]


@dataclass(frozen=True)
class _Schedule:
    """Devices, and in ticks the starts of operators and flows, and the step; inf: impossible."""

    device: list[int]
    start: list[int | float]
    flows: list[int | float]
    step: int | float


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
        self.silent: list[tuple[int, int]] = []
        n = instance.operators
        self.on = cp_sat.places(self.model, instance, instance.able)  # (4c), (5) and co-location
        self.start = [self._time() for _ in range(n)]
        self.end = [self._ends(i) for i in range(n)]
        self._operators()
        self._flows()
        self.model.minimize(self.step)

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.latest, "")

    def begin(self, starts: Sequence[IntArray]) -> None:
        """Hints at the shortest of these, devices int64[n]; at none where all take longer than the
        horizon."""
        schedules = [self._schedule(device.tolist()) for device in starts]
        found = min(schedules, key=lambda one: one.step, default=None)
        if found is None or found.step > self.latest:
            return
        device, hint = found.device, self.model.add_hint
        cp_sat.hint_places(self.model, self.on, np.array(device))
        hint(self.step, found.step)
        for variable, at in zip(self.start, found.start, strict=True):
            hint(variable, at)
        for flow, at in zip(self.flows, found.flows, strict=True):
            took = flow.took(device)
            for variable, known in zip(flow.times, (at, took, at + took), strict=True):
                hint(variable, known)
            for ends, (_, used) in flow.channels.items():
                hint(used, ends == (device[flow.tail], device[flow.head]))
            for d, (leaves, reaches) in enumerate(flow.travels):
                here, there = device[flow.tail] == d, device[flow.head] == d
                hint(leaves, here and not there)
                hint(reaches, there and not here)

    def _schedule(self, device: list[int]) -> _Schedule:
        """Operators in the recorded sort; each flow when its devices are free for it, in the order
        of its heads."""
        n, devices = self.instance.operators, self.instance.devices
        into: list[list[int]] = [[] for _ in range(n)]
        for q, flow in enumerate(self.flows):
            into[flow.head].append(q)
        silent: list[list[int]] = [[] for _ in range(n)]
        for i, j in self.silent:
            silent[j].append(i)
        start: list[int | float] = [0] * n
        end, moved = list(start), list[int | float]([0] * len(self.flows))
        free: list[int | float] = [0] * devices
        leaving, reaching = list(free), list(free)
        for k in self.instance.order.tolist():
            here = device[k]
            ready = [free[here], *(end[i] for i in silent[k])]
            for q in into[k]:
                flow, there = self.flows[q], device[self.flows[q].tail]
                moved[q] = end[flow.tail]
                if there != here:
                    moved[q] = max(moved[q], leaving[there], reaching[here])
                    leaving[there] = reaching[here] = moved[q] + flow.took(device)
                ready.append(moved[q] + flow.took(device))
            start[k] = max(ready)
            end[k] = free[here] = start[k] + self.ticks[k][here]
        return _Schedule(device, start, moved, max(end, default=0))

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
        for i, j, bits in zip(*(column.tolist() for column in self.instance.edges), strict=True):
            if bits == 0:
                self.silent.append((i, j))
                model.add(self.end[i] <= self.start[j])
                continue
            start, took, end = self._time(), self._time(), self._time()
            flow = _Flow(i, j, (start, took, end), self._channels(i, j, bits))
            self.flows.append(flow)
            model.add(took == sum(ticks * used for ticks, used in flow.channels.values()))
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
