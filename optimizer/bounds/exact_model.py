"""The contention-free relaxation as a CP-SAT model: a device for each unit, a start per operator.

Every constraint holds, up to rounding down to ticks, in every schedule within the horizon. So a
bound of the model is a bound of the problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.bounds.load import all_alike
from placewire.optimizer.bounds.relaxation import Relaxation
from placewire.optimizer.bounds.turns import summed

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar


@dataclass(frozen=True)
class Machines:
    """What the model knows of the devices.

    seconds float64[n, D] of the relaxation's operators, inf where one cannot run; held_bytes
    int64[n]: certainly resident; memory_bytes int64[D]; alike: any two devices may be exchanged;
    ordered: each device runs its operators in the relaxation's order (model thesis)."""

    seconds: FloatArray
    held_bytes: IntArray
    memory_bytes: IntArray
    alike: bool
    ordered: bool

    @property
    def count(self) -> int:
        return int(self.seconds.shape[1])

    @cached_property
    def same_speed(self) -> bool:
        return all_alike(self.seconds)

    def of_joined(self, home: IntArray) -> Machines:
        """The same machines, where home int64[n] says which operator each has become."""
        seconds, held_bytes = summed(self.seconds, home), summed(self.held_bytes, home)
        return replace(self, seconds=seconds, held_bytes=held_bytes)


class ExactModel:
    """`model` minimises `step`, in ticks of `tick` seconds; infeasible: no step within the horizon.

    ticks: how many the horizon has; with fewer the search is faster and proves a little less.
    relaxation: tightened for the horizon, so that its heads and tails hold within it.
    """

    def __init__(
        self, relaxation: Relaxation, machines: Machines, horizon_seconds: float, ticks: int
    ) -> None:
        from ortools.sat.python import cp_model

        self.relaxation, self.machines = relaxation, machines
        self.horizon, self.tick = ticks, horizon_seconds / ticks
        self.model: CpModel = cp_model.CpModel()
        self.step = self.model.new_int_var(0, self.horizon, "step")
        self.place = self._places()
        self._apart: dict[tuple[int, int], IntVar] = {}
        self.start = self._starts()
        self._delays()
        self._one_at_a_time()
        self._memory()
        if machines.alike:
            self._break_symmetry()
        self.model.minimize(self.step)

    def ticks(self, seconds: float) -> int:
        """Rounded down after a reduction by 1e-12: rounding must never make a tick too many. What
        takes longer than the horizon, or for ever, takes one tick more than the horizon."""
        return max(0, math.floor(min(seconds / self.tick * (1 - 1e-12), self.horizon + 1)))

    def took(self, i: int) -> Any:
        """An operator's ticks, as an expression where they depend on its device."""
        if self.machines.same_speed:
            return self.ticks(float(self.relaxation.work[i]))
        row = self.machines.seconds[i]
        place = self.place[int(self.relaxation.unit[i])]
        return sum(
            self.ticks(float(row[d])) * place[d] for d in range(len(row)) if np.isfinite(row[d])
        )

    def apart(self, one: int, other: int) -> IntVar:
        """The literal that is true where two units are on different devices."""
        key = (min(one, other), max(one, other))
        if key not in self._apart:
            apart = self.model.new_bool_var("")
            for a, b in zip(self.place[key[0]], self.place[key[1]], strict=True):
                self.model.add_bool_or(~a, b, apart)
                self.model.add_bool_or(a, ~b, apart)
                self.model.add_bool_or(~a, ~b, ~apart)
            self._apart[key] = apart
        return self._apart[key]

    def _places(self) -> list[list[IntVar]]:
        units, seconds = self.relaxation.units, self.machines.seconds
        able = np.ones((units, self.machines.count), dtype=bool)
        np.logical_and.at(able, self.relaxation.unit, np.isfinite(seconds))
        place = [[self.model.new_bool_var("") for _ in row] for row in able]
        for row, can in zip(place, able.tolist(), strict=True):
            self.model.add_exactly_one(row)
            for literal, possible in zip(row, can, strict=True):
                if not possible:
                    self.model.add(literal == 0)
        return place

    def _starts(self) -> list[IntVar]:
        head, tail = self.relaxation.heads_and_tails
        start = []
        for i in range(self.relaxation.operators):
            work, after = float(self.relaxation.work[i]), float(tail[i])
            latest = self.horizon - self.ticks(work) - self.ticks(after)
            earliest = self.ticks(float(head[i]))
            start.append(self.model.new_int_var(min(earliest, latest), latest, ""))
            self.model.add(self.step >= start[i] + self.took(i) + self.ticks(after))
        return start

    def _delays(self) -> None:
        for u, v, near, far in self.relaxation.edge_rows():
            one, other = int(self.relaxation.unit[u]), int(self.relaxation.unit[v])
            ready = self.start[u] + self.took(u)
            late: Any = 0
            if one != other and far >= self.horizon * self.tick:
                self.model.add(self.apart(one, other) == 0)
            elif one != other and self.ticks(far) > self.ticks(near):
                late = (self.ticks(far) - self.ticks(near)) * self.apart(one, other)
            self.model.add(self.start[v] >= ready + self.ticks(near) + late)

    def _one_at_a_time(self) -> None:
        model, relaxation, machines = self.model, self.relaxation, self.machines
        busy = [i for i in relaxation.order.tolist() if self.ticks(float(relaxation.work[i])) > 0]
        for d in range(machines.count):
            able = [i for i in busy if np.isfinite(machines.seconds[i, d])]
            here = {i: self.place[int(relaxation.unit[i])][d] for i in able}
            size = {i: self.ticks(float(machines.seconds[i, d])) for i in able}
            optional = model.new_optional_fixed_size_interval_var
            model.add_no_overlap([optional(self.start[i], size[i], here[i], "") for i in able])
            model.add(self.step >= sum(size[i] * here[i] for i in able))
        if machines.same_speed and machines.count > 1:
            sizes = [self.ticks(float(relaxation.work[i])) for i in busy]
            together = [
                model.new_fixed_size_interval_var(self.start[i], size, "")
                for i, size in zip(busy, sizes, strict=True)
            ]
            model.add_cumulative(together, [1] * len(busy), machines.count)
            model.add(machines.count * self.step >= sum(sizes))
        if machines.ordered:
            self._in_order(busy)

    def _in_order(self, busy: list[int]) -> None:
        """An operator starts when all that precede it in the order have ended on its device."""
        model = self.model
        until: list[Any] = [0] * self.machines.count
        for i in busy:
            for d, here in enumerate(self.place[int(self.relaxation.unit[i])]):
                size = self.machines.seconds[i, d]
                if not np.isfinite(size):
                    continue
                model.add(self.start[i] >= until[d]).only_enforce_if(here)
                end = model.new_int_var(0, self.horizon, "")
                model.add(end >= until[d])
                model.add(end >= self.start[i] + self.ticks(float(size))).only_enforce_if(here)
                until[d] = end

    def _memory(self) -> None:
        held = np.bincount(
            self.relaxation.unit, weights=self.machines.held_bytes, minlength=self.relaxation.units
        )
        mib = [int(b) >> 20 for b in held.tolist()]
        for d, memory in enumerate(self.machines.memory_bytes.tolist()):
            if sum(mib) > memory >> 20:
                used = sum(m * row[d] for m, row in zip(mib, self.place, strict=True))
                self.model.add(used <= memory >> 20)

    def _break_symmetry(self) -> None:
        """The unit of most work is on device 0, the one of k-th most work on a device up to k."""
        load = np.bincount(self.relaxation.unit, weights=self.relaxation.work)
        largest = np.argsort(-load, kind="stable")[: self.machines.count - 1].tolist()
        for k, u in enumerate(largest):
            for d in range(k + 1, self.machines.count):
                self.model.add(self.place[u][d] == 0)
