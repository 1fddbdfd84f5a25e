"""Bounds by cases: on which device each unit is.

Devices have no names here: any two may be exchanged. For a step of T seconds, what is known of the
devices that a unit can be on says more than what holds in any placement:
- an edge between units that are certainly apart is a transfer, and an operator has a least time
  before its start and after its end on each device (`starts_in_places`), which where devices keep
  to an order has what is certainly there before and after it. A unit is on no device where these do
  not fit into T with one of its operators;
- the operators that are certainly on one device run there one after the other, with what messages
  take of it, and what it sends and receives passes its NICs (`occupied_seconds`);
- all work has to fit on the devices (`preemptive`).
Where a unit fits on no device, no schedule is within T. Else units are tried on each device: on
those that others are certainly on, and on one of the rest, between which nothing differs. A device
on which a unit leads to a contradiction is ruled out for good; where it has one left, it is there.
Within each case the next unit is tried: the one, among those with several devices left, whose cases
say most. This ends when all cases are refuted, or when one has nothing left to try.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.bounds.message_time import Messages
from placewire.optimizer.bounds.preemptive import fits
from placewire.optimizer.bounds.relaxation import Relaxation
from placewire.optimizer.kernels.graphs.occupied import occupied_seconds
from placewire.optimizer.kernels.graphs.places import leave_possible, starts_in_places

# No case is more than so many decisions deep.
_DEEPEST = 100
# So many units whose operators have least time to spare, and so many with most work, are compared
# before one of them is decided. They are units that may still be on several devices.
_TIGHT, _HEAVY = 14, 10
# A case that decides so many more places than another is worth twice as much.
_WORTH_TWICE = 12.0
# With more operators the flow of `preemptive` takes too long for every case.
_FLOW_UP_TO = 1_000


@dataclass(frozen=True)
class _Case:
    """may bool[U, D]: which devices each unit can be on. before, after float64[n, D]: least seconds
    before each operator's start and after its end on each."""

    may: BoolArray
    before: FloatArray
    after: FloatArray

    @cached_property
    def possible(self) -> IntArray:
        """int64[U]: how many devices each unit can be on."""
        count: IntArray = self.may.sum(axis=1)
        return count

    @cached_property
    def used(self) -> BoolArray:
        """bool[D]: the devices that some unit is certainly on."""
        found: BoolArray = self.may[self.possible == 1].any(axis=0)
        return found

    def places(self, unit: int) -> Iterator[tuple[int, BoolArray]]:
        """(a device that the unit can be on, bool[D]: itself, and those that are like it)."""
        free = self.may[unit] & ~self.used
        for device in np.flatnonzero(self.may[unit] & self.used).tolist():
            yield device, np.arange(len(free)) == device
        if free.any():
            yield int(np.argmax(free)), free


@dataclass
class Cases:
    """Cases of a step of `step` seconds; relaxation: tightened for it. until: of time.monotonic();
    then no further case is looked at."""

    relaxation: Relaxation
    messages: Messages
    step: float
    until: float

    def refuted(self) -> bool:
        """Whether no schedule is within the step. False also where the time was up before."""
        may = np.ones((self.relaxation.units, self.relaxation.devices), dtype=bool)
        may[np.argmax(self._load)] = np.arange(self.relaxation.devices) == 0
        first = self._looked_at(may)
        return first is None or self._all_refuted(first, _DEEPEST)

    def _all_refuted(self, case: _Case, depth: int) -> bool:
        if depth == 0 or not self._fits(case):
            return depth > 0
        best: tuple[float, int] | None = None
        for unit in self._worth_deciding(case):
            if time.monotonic() > self.until:
                return False
            if case.possible[unit] == 1:
                continue  # It became so by what was ruled out of others.
            left, worth = np.zeros(self.relaxation.devices, dtype=bool), 0.0
            for device, alike in case.places(unit):
                one = self._looked_at(_decided(case.may, unit, device))
                if one is not None:
                    left |= alike
                    decided = float(case.possible.sum() - one.possible.sum())
                    worth -= 2.0 ** (-decided / _WORTH_TWICE)
            if (left != case.may[unit]).any():
                narrower = self._looked_at(_narrowed(case.may, unit, left))
                if narrower is None:
                    return True
                case = narrower
            if case.possible[unit] > 1 and (best is None or worth > best[0]):
                best = worth, unit
        if best is None:
            return self._has_choice(case) and self._all_refuted(case, depth - 1)
        for device, _ in case.places(best[1]):
            one = self._looked_at(_decided(case.may, best[1], device))
            if one is not None and not self._all_refuted(one, depth - 1):
                return False
        return True

    def _has_choice(self, case: _Case) -> bool:
        return bool((case.possible[self._load > 0.0] > 1).any())

    def _worth_deciding(self, case: _Case) -> list[int]:
        relaxation = self.relaxation
        some = np.flatnonzero((case.possible > 1) & (self._load > 0.0))
        taken = case.before + relaxation.work[:, None] + case.after
        taken = np.where(case.may[relaxation.unit], taken, -np.inf).max(axis=1)
        tight = np.full(relaxation.units, -np.inf)
        np.maximum.at(tight, relaxation.unit, taken)
        first = some[np.argsort(-tight[some], kind="stable")[:_TIGHT]]
        heavy = some[np.argsort(-self._load[some], kind="stable")[:_HEAVY]]
        found: list[int] = np.unique(np.concatenate([first, heavy])).tolist()
        return found

    def _looked_at(self, may: BoolArray) -> _Case | None:
        """The case with all that follows from it, or None where it is refuted. may: changed."""
        relaxation, messages = self.relaxation, self.messages
        head, tail = relaxation.heads_and_tails
        before, after = np.empty((2, relaxation.operators, relaxation.devices))
        while True:
            turns = relaxation.takes_turns
            starts_in_places(*self._forwards, head, relaxation.unit, may, turns, before)
            starts_in_places(*self._backwards, tail, relaxation.unit, may, turns, after)
            if not leave_possible(
                relaxation.work, relaxation.unit, self._group, relaxation.clashes, before, after,
                self.step, may,
            ):  # fmt: skip
                break
            if not may.any(axis=1).all():
                return None
        least = occupied_seconds(
            relaxation.work, relaxation.unit, may, before, after, messages.producer, messages.start,
            messages.reader, messages.crossing, messages.sending, messages.message, messages.wire,
            messages.latency, self.step,
        )  # fmt: skip
        return None if least > self.step else _Case(may, before, after)

    def _fits(self, case: _Case) -> bool:
        relaxation = self.relaxation
        if relaxation.operators > _FLOW_UP_TO:
            return True
        may = case.may[relaxation.unit]
        head = np.where(may, case.before, np.inf).min(axis=1)
        tail = np.where(may, case.after, np.inf).min(axis=1)
        certain = case.possible[relaxation.unit] == 1
        unit = np.where(certain, relaxation.units + may.argmax(axis=1), relaxation.unit)
        return fits(head, relaxation.work, tail, unit, relaxation.devices, self.step)

    @cached_property
    def _load(self) -> FloatArray:
        relaxation = self.relaxation
        load = np.bincount(relaxation.unit, weights=relaxation.work, minlength=relaxation.units)
        return load.astype(np.float64)

    @cached_property
    def _group(self) -> IntArray:
        """int64[U]: a group of each unit's operators, -1 where none has one. A unit that was joined
        of several may have operators of several groups, each of which holds for it; one is kept."""
        group = np.full(self.relaxation.units, -1, dtype=np.int64)
        np.maximum.at(group, self.relaxation.unit, self.relaxation.group)
        return group

    @cached_property
    def _forwards(self) -> tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray, FloatArray]:
        relaxation = self.relaxation
        return relaxation.order, relaxation.work, *relaxation.edges_by_target

    @cached_property
    def _backwards(self) -> tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray, FloatArray]:
        relaxation = self.relaxation
        backwards = np.ascontiguousarray(relaxation.order[::-1])
        return backwards, relaxation.work, *relaxation.edges_by_source


def _decided(may: BoolArray, unit: int, device: int) -> BoolArray:
    return _narrowed(may, unit, np.arange(may.shape[1]) == device)


def _narrowed(may: BoolArray, unit: int, left: BoolArray) -> BoolArray:
    """A copy in which the unit is on one of these devices, bool[D]."""
    copy = may.copy()
    copy[unit] &= left
    return copy
