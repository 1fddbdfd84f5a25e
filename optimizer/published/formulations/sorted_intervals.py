"""Solves the programs of the thesis and of QuickP with CP-SAT: P1 to P3 without large numbers.

(3.6) and (4.7) say that a device runs its operators one at a time, in the sort TP. Here an
operator starts when all that precede it in the sort have ended on its device; optional intervals
that do not overlap, and the sum of a device's times, say a part of it again for the bound. P1 and
P3 differ in how many rows say this, not in what they admit, and so are one model here.

Times are whole ticks, and decided bandwidths whole parts of the widest (whole_numbers.py). An
answer's objective is not rounded: it is A by own_step.py. Its bound is lowered by what rounding may
have raised it. The search begins with the best of the starts, and the answer is never worse. That
start also says how long a tick is: where there is none, ticks are as coarse as the horizon is long.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.published.formulations import cp_sat
from placewire.optimizer.published.formulations.answer import (
    NO_ANSWER,
    Answer,
    Heard,
    no_bound_above,
)
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.known_start import (
    KnownStart,
    best_start,
    step_seconds,
    values_of,
)
from placewire.optimizer.published.formulations.own_step import earliest_starts
from placewire.optimizer.published.formulations.papers import Formulation
from placewire.optimizer.published.formulations.whole_numbers import (
    LIMIT_PARTS,
    RATE_PARTS,
    SLOWNESS_PARTS,
    WholeNumbers,
)

# Where the hyperbola of a rate and its slowness gets tangents, as parts of the widest. They are
# implied, and help the bound.
_POINTS = tuple(0.7**k for k in range(12))

# By which part floats that are equal may differ.
_FLOATS = 1e-9


def solve(
    formulation: Formulation,
    starts: Sequence[IntArray],
    seconds: float,
    gap: float,
    heard: Heard | None = None,
) -> Answer:
    """Solves within about `seconds`, to the relative gap. Of an answer's values only x and the
    decided rates are set."""
    until = time.monotonic() + seconds
    begun = best_start(formulation, starts)
    whole = WholeNumbers(formulation, 0.0 if begun is None else begun.seconds)
    reader = _Reader(formulation, whole)
    best = NO_ANSWER

    def keep(answer: Answer) -> None:
        nonlocal best
        if answer.objective < best.objective:
            best = replace(answer, rounds=best.rounds, bound=max(best.bound, answer.bound))
            if heard is not None:
                heard(best)

    if begun is not None:
        keep(reader.answer(begun.device, begun.parts, bound=0.0))
    built = _Model(formulation, whole, begun)

    def told(value: cp_sat.Value, objective: float, bound: float) -> None:
        nonlocal best
        best = replace(best, rounds=best.rounds + 1)
        keep(reader.answer(*built.decision(value), bound=bound))

    ended = cp_sat.search(built.model, until, max(gap - whole.rounding, 0.0), told)
    if ended.infeasible:
        if best.values is not None:
            raise AssertionError(f"{formulation.name}: cp-sat denies the placement that is known")
        return replace(best, words=ended.words, infeasible=True)
    bound = max(best.bound, reader.bound(ended.bound))
    bound = no_bound_above(best.objective, bound, best.objective * _FLOATS, formulation.name)
    best = replace(best, words=ended.words, bound=bound)
    solved = ended.words == "within the gap"
    if solved and best.bound < (1.0 - gap) * best.objective:
        return replace(best, words="within the gap but for rounding to whole numbers")
    return best


def part_count(formulation: Formulation) -> int:
    """The number of intervals, rows and clauses: an interval and three rows for each device and
    operator that takes time; for a tensor a row, three clauses on each device that say whether it
    travels, and a row for each pair of devices, where they are unlike."""
    instance, network = formulation.instance, formulation.network
    sent = int((instance.edges[2] > 0).sum())
    pairs = 0 if network.uniform else len(network.source)
    return (
        4 * instance.devices * len(instance.sorted_costly)
        + instance.operators
        + len(instance.edges[0])
        + sent * (3 * instance.devices + pairs)
    )


class _Reader:
    """Reads decisions, devices int64[n] and rates in parts int64[k], as answers."""

    def __init__(self, formulation: Formulation, whole: WholeNumbers) -> None:
        self.formulation, self.whole = formulation, whole

    def answer(self, device: IntArray, parts: IntArray, bound: float) -> Answer:
        """bound: in ticks."""
        values = values_of(self.whole, device, parts)
        objective = step_seconds(self.whole, device, parts) / self.formulation.horizon_seconds
        return Answer(values, objective, self.bound(bound), infeasible=False, words="time limit")

    def bound(self, ticks: float) -> float:
        """A bound of the program, of a bound of the model."""
        whole = self.whole
        lowered = max(ticks, 0.0) / whole.horizon - whole.time_rounding
        seconds = max(lowered, 0.0) * (1.0 - whole.rate_rounding) * whole.seconds
        return seconds / self.formulation.horizon_seconds


class _Model:
    """The CP-SAT model; of the operators, on [n][D] are literals and start [n] ticks. begun: what
    the search begins with; no answer may take longer."""

    def __init__(
        self, formulation: Formulation, whole: WholeNumbers, begun: KnownStart | None
    ) -> None:
        from ortools.sat.python import cp_model

        self.model: Any = cp_model.CpModel()
        instance = self.instance = formulation.instance
        self.network, self.whole = formulation.network, whole
        known = None
        if begun is not None:
            known = _in_ticks(instance, whole, begun.device, begun.parts)
        self.latest = whole.latest if known is None else max(known[1], 1)
        self.step = self._time()
        # An operator that alone takes longer than any answer may is not run there.
        self.able = instance.able & (whole.operators <= self.latest)
        self.on = cp_sat.places(self.model, instance, self.able)
        self.start = [self._time() for _ in range(instance.operators)]
        sizes = np.where(self.able, whole.operators, 0).tolist()
        self.took = [
            sum(ticks * x for ticks, x in zip(row, on, strict=True) if ticks)
            for row, on in zip(sizes, self.on, strict=True)
        ]
        if instance.homogeneous:
            self.took = whole.operators[:, 0].tolist()
        for start, took in zip(self.start, self.took, strict=True):
            self.model.add(self.step >= start + took)
        self.apart: dict[tuple[int, int], tuple[int, int, Any]] = {}
        self.ends: list[tuple[int, int, Any]] = []
        self.parts, self.slowness, self.products = self._rates()
        self._in_order()
        self._transfers()
        self.model.minimize(self.step)
        if begun is not None and known is not None:
            self._begin(begun, *known)

    def decision(self, value: cp_sat.Value) -> tuple[IntArray, IntArray]:
        device = [[value(x) for x in row].index(1) for row in self.on]
        parts = [value(b) for b in self.parts]
        return np.array(device, dtype=np.int64), np.array(parts, dtype=np.int64)

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.latest, "")

    def _rates(self) -> tuple[list[Any], list[Any], list[Any]]:
        """(3.7) and the uplinks: (b, its slowness, their product) of each pair of servers whose
        bandwidth is decided."""
        model, pairs = self.model, self.network.server_pairs
        least = self.whole.least_parts
        parts = [model.new_int_var(least, RATE_PARTS, "") for _ in pairs]
        most = self.whole.slowness(least)
        slowness = [model.new_int_var(SLOWNESS_PARTS, most, "") for _ in pairs]
        one = RATE_PARTS * SLOWNESS_PARTS
        # The least slowness of b lifts the product by less than b. A wider domain would be of no
        # use, and CP-SAT takes no model whose domains together exceed 64 bits.
        products = [model.new_int_var(one, one + RATE_PARTS, "") for _ in pairs]
        for b, y, product in zip(parts, slowness, products, strict=True):
            model.add_multiplication_equality(product, [b, y])
            for point in _POINTS:  # b >= 2 p - p^2 y
                slope = int(np.ceil(RATE_PARTS * point * point / SLOWNESS_PARTS))
                model.add(b >= int(2 * RATE_PARTS * point) - 1 - slope * y)
        for mine, taken in self.whole.shared:
            rates = (parts[k] for k in mine.tolist())
            used = sum(part * b for part, b in zip(taken.tolist(), rates, strict=True))
            model.add(used <= LIMIT_PARTS * RATE_PARTS)
        return parts, slowness, products

    def _in_order(self) -> None:
        """(3.6), (4.7)."""
        model, ticks = self.model, self.whole.operators
        costly = self.instance.sorted_costly.tolist()
        for d in range(self.instance.devices):
            able = [i for i in costly if self.able[i, d]]
            sizes = ticks[able, d].tolist()
            here = [self.on[i][d] for i in able]
            starts = [self.start[i] for i in able]
            until: Any = 0
            for i, start, size, x in zip(able, starts, sizes, here, strict=True):
                model.add(start >= until).only_enforce_if(x)
                end = self._time()
                self.ends.append((i, d, end))
                model.add(end >= until)
                model.add(end >= start + size).only_enforce_if(x)
                until = end
            model.add_no_overlap(
                model.new_optional_fixed_size_interval_var(start, size, x, "")
                for start, size, x in zip(starts, sizes, here, strict=True)
            )
            model.add(self.step >= sum(p * x for p, x in zip(sizes, here, strict=True)))

    def _transfers(self) -> None:
        """(3.5), (3.9), (4.6)."""
        model, network = self.model, self.network
        uniform = network.uniform
        for e, (i, j, bits) in enumerate(
            zip(*(column.tolist() for column in self.instance.edges), strict=True)
        ):
            ready = self.start[i] + self.took[i]
            if bits == 0 or self.on[i] is self.on[j]:
                model.add(ready <= self.start[j])
                continue
            given, apart = self.whole.given(e), self._apart(i, j)
            quickest = int((given + self.whole.least_decided(e)).min(initial=self.latest + 1))
            if quickest > self.latest:
                model.add(apart == 0)
            model.add(ready + min(quickest, self.latest) * apart <= self.start[j])
            if not uniform:
                self._of_pairs(e, i, j, quickest)

    def _of_pairs(self, e: int, i: int, j: int, quickest: int) -> None:
        """What the transfer of edge e takes between each two devices, beyond the quickest."""
        model, network = self.model, self.network
        given, took = self.whole.given(e).tolist(), self.whole.operators[i].tolist()
        size, scale = (numbers.tolist() for numbers in self.whole.decided(e))
        least = self.whole.least_decided(e).tolist()
        for q, (a, b) in enumerate(
            zip(network.source.tolist(), network.target.tolist(), strict=True)
        ):
            if not (self.able[i, a] and self.able[j, b]):
                continue
            both = self.on[i][a], self.on[j][b]
            pair = int(network.decided[q])
            sent = self.start[i] + took[a] + given[q]
            if given[q] + least[q] > self.latest:
                model.add_bool_or(~both[0], ~both[1])
            elif pair >= 0:
                room = SLOWNESS_PARTS * scale[q] * (self.start[j] - sent)
                model.add(size[q] * self.slowness[pair] <= room).only_enforce_if(*both)
            elif given[q] > quickest:
                model.add(sent <= self.start[j]).only_enforce_if(*both)

    def _apart(self, i: int, j: int) -> Any:
        """A literal that is true where i and j are on different devices."""
        key = tuple(sorted((self.on[i][0].index, self.on[j][0].index)))
        if key not in self.apart:
            apart = self.model.new_bool_var("")
            self.apart[key] = i, j, apart
            for one, other in zip(self.on[i], self.on[j], strict=True):
                self.model.add_bool_or(~one, other, apart)
                self.model.add_bool_or(one, ~other, apart)
                self.model.add_bool_or(~one, ~other, ~apart)
        return self.apart[key][2]

    def _begin(self, begun: KnownStart, start: list[int], step: int) -> None:
        """Hints at a value of every variable."""
        hint, device = self.model.add_hint, begun.device.tolist()
        cp_sat.hint_places(self.model, self.on, begun.device)
        for variable, at in zip(self.start, start, strict=True):
            hint(variable, at)
        for i, j, apart in self.apart.values():
            hint(apart, device[i] != device[j])
        idle_at = [0] * self.instance.devices
        for i, d, end in self.ends:
            if device[i] == d:
                idle_at[d] = start[i] + int(self.whole.operators[i, d])
            hint(end, idle_at[d])
        rates = zip(self.parts, self.slowness, self.products, begun.parts.tolist(), strict=True)
        for b, y, product, known in rates:
            slowness = self.whole.slowness(known)
            for variable, value in ((b, known), (y, slowness), (product, known * slowness)):
                hint(variable, value)
        hint(self.step, step)


def _in_ticks(
    instance: Instance, whole: WholeNumbers, device: IntArray, parts: IntArray
) -> tuple[list[int], int]:
    """(the starts, the step) of a decision, in the model's ticks."""
    took = whole.operators[np.arange(instance.operators), device].tolist()
    start = earliest_starts(instance, device, took, whole.transfers(device, parts).tolist())
    return start, max((at + size for at, size in zip(start, took, strict=True)), default=0)
