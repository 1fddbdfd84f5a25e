"""Bounds by cases: each operator is on the device of the unit with most work, or elsewhere.

For a step of T seconds the two cases of an operator leave less freedom than both together:
- where an operator and one behind it are on the device, and one between them is not, two transfers
  pass between them;
- what is on the device runs there one after the other, with what messages take of it: a tensor that
  leaves it, or comes (`message_time`). Of a tensor made there and a reader that may be in either
  place, one takes the device after the producer: the reader's run, or sending the tensor. A tensor
  and a reader count in one such pair at most, so that nothing counts twice. Jackson's preemptive
  bound of one machine is the least step with all of these;
- all work has to fit on the devices (`preemptive`).
Where one case of an operator allows no step of T, the other is certain for its whole unit. Where
both allow none, no schedule is within T. Where neither is refuted, the unit whose cases say most is
tried in both, and so on within each, until all are refuted or one has nothing left to try.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.bounds.message_time import Messages
from placewire.optimizer.bounds.preemptive import fits
from placewire.optimizer.bounds.relaxation import Relaxation
from placewire.optimizer.kernels.graphs.heads import one_machine
from placewire.optimizer.kernels.graphs.two_places import starts_in_two_places

# So many cases are looked at for one step: _EFFORT over the number of operators, in this range.
# None is more than so many decisions deep.
_EFFORT, _FEWEST_CASES, _MOST_CASES, _DEEPEST = 600_000, 50, 3_000, 30
# Of the units that may be in both places, so many whose cases leave least time, and so many with
# most work, are compared before one is decided.
_TIGHT, _HEAVY = 6, 4
# With more operators the flow of `preemptive` takes too long for every case.
_FLOW_UP_TO = 1_000


@dataclass(frozen=True)
class _Case:
    """side int64[n]: 1 on the device, -1 elsewhere, 0 open. Seconds before the start and after the
    end, float64[n]: on the device, and elsewhere; inf where it cannot be. came: seconds, see
    `starts_in_two_places`."""

    side: IntArray
    head: tuple[FloatArray, FloatArray]
    tail: tuple[FloatArray, FloatArray]
    came: FloatArray


@dataclass
class Cases:
    """Cases of a step of `step` seconds; relaxation: tightened for it. looks: how many were looked
    at."""

    relaxation: Relaxation
    messages: Messages
    step: float
    until: float
    looks: int = field(default=0)

    def refuted(self) -> bool:
        """Whether no schedule is within the step. False also where time.monotonic() has come to
        `until`, or too many cases would have to be looked at."""
        first = self._looked_at(self._known())
        return first is None or self._all_refuted(first, _DEEPEST)

    def _known(self) -> IntArray:
        """The unit with most work is on the device, and what clashes with it is elsewhere."""
        relaxation = self.relaxation
        inside = relaxation.unit == int(np.argmax(self._load))
        side: IntArray = inside.astype(np.int64)
        groups = relaxation.group[inside]
        if (groups >= 0).any():
            clashes = relaxation.clashes[groups[groups >= 0]].any(axis=0)
            side[(relaxation.group >= 0) & clashes[relaxation.group] & ~inside] = -1
        return side

    def _all_refuted(self, case: _Case, depth: int) -> bool:
        if depth == 0 or self.looks > self._most_looks or time.monotonic() > self.until:
            return False
        best: tuple[tuple[int, int], list[_Case]] | None = None
        for unit in self._worth_deciding(case):
            both = [self._looked_at(self._decided(case.side, unit, side)) for side in (1, -1)]
            left = [one for one in both if one is not None]
            decided = sorted(
                self.relaxation.operators if one is None else int((one.side != case.side).sum())
                for one in both
            )
            if not left:
                return True
            key = decided[0], decided[1]
            if best is None or key > best[0]:
                best = key, left
        return best is not None and all(self._all_refuted(one, depth - 1) for one in best[1])

    def _decided(self, side: IntArray, unit: int, where: int) -> IntArray:
        return np.where(self.relaxation.unit == unit, where, side)

    def _worth_deciding(self, case: _Case) -> Iterator[int]:
        relaxation = self.relaxation
        here, elsewhere = (
            head + relaxation.work + tail for head, tail in zip(case.head, case.tail, strict=True)
        )
        some = np.flatnonzero(case.side == 0)
        tightness = np.full(relaxation.units, -np.inf)
        differs = np.abs(here - elsewhere) + np.minimum(here, elsewhere)
        np.maximum.at(tightness, relaxation.unit[some], differs[some])
        tightest = np.argsort(-tightness, kind="stable")[:_TIGHT]
        heaviest = np.argsort(-np.where(tightness > 0, self._load, 0.0), kind="stable")[:_HEAVY]
        for unit in dict.fromkeys([*tightest.tolist(), *heaviest.tolist()]):
            if tightness[unit] > 0:
                yield unit

    def _looked_at(self, side: IntArray) -> _Case | None:
        """The case with all that follows from it, or None where it is refuted."""
        self.looks += 1
        relaxation = self.relaxation
        while True:
            case = self._timed(side)
            late = [
                head + relaxation.work + tail > self.step
                for head, tail in zip(case.head, case.tail, strict=True)
            ]
            never = np.zeros((2, relaxation.units), dtype=bool)
            for row, is_late in zip(never, late, strict=True):
                row[relaxation.unit[is_late]] = True
            if never.all(axis=0).any():
                return None
            follows = never[0, relaxation.unit] | never[1, relaxation.unit]
            sides = np.where(never[0, relaxation.unit], -1, 1)
            following = np.where(follows, sides, 0)
            if (following == side).all():
                break
            side = following
        if self._occupied_seconds(case) > self.step or not self._fits(case):
            return None
        return case

    def _timed(self, side: IntArray) -> _Case:
        relaxation = self.relaxation
        head, tail = relaxation.heads_and_tails
        here, elsewhere, came = starts_in_two_places(*self._forwards, head, side)
        after_here, after_elsewhere, _ = starts_in_two_places(*self._backwards, tail, side)
        return _Case(side, (here, elsewhere), (after_here, after_elsewhere), came)

    def _occupied_seconds(self, case: _Case) -> float:
        """The least step with what occupies the device."""
        relaxation, messages, side = self.relaxation, self.messages, case.side
        here = np.flatnonzero(side == 1)
        end = case.head[0] + relaxation.work
        releases, times, deliveries = (
            [case.head[0][here]],
            [relaxation.work[here]],
            [case.tail[0][here]],
        )

        def add(release: FloatArray, seconds: FloatArray, delivery: FloatArray) -> None:
            releases.append(release)
            times.append(seconds)
            deliveries.append(delivery)

        source, target = messages.source, messages.target
        leaves = np.flatnonzero((side[source] == 1) & (side[target] != 1))
        certain = side[target] == -1
        after = messages.way + relaxation.work[target] + case.tail[1][target]
        sent = messages.once(leaves[certain[leaves]], after)
        add(end[source[sent]], messages.sending[sent], after[sent])
        maybe = leaves[~np.isin(messages.tensor[leaves], messages.tensor[sent])]
        either = np.minimum(messages.sending, relaxation.work[target])
        pairs = messages.paired(maybe, either)
        least = np.minimum(*case.tail)[target[pairs]]
        add(end[source[pairs]], either[pairs], least)
        came = float(case.came[here].max(initial=-1.0))
        if came >= 0.0 and np.isfinite(came):
            add(np.array([came]), np.array([messages.taking]), np.zeros(1))
        release, seconds, delivery = map(np.concatenate, (releases, times, deliveries))
        by_release = np.argsort(release, kind="stable")
        return float(one_machine(release, seconds, delivery, by_release, len(by_release)))

    def _fits(self, case: _Case) -> bool:
        relaxation = self.relaxation
        if relaxation.operators > _FLOW_UP_TO:
            return True
        head, tail = np.minimum(*case.head), np.minimum(*case.tail)
        unit = np.where(case.side == 1, relaxation.units, relaxation.unit)
        return fits(head, relaxation.work, tail, unit, relaxation.devices, self.step)

    @property
    def _most_looks(self) -> int:
        effort = _EFFORT // max(self.relaxation.operators, 1)
        return min(max(effort, _FEWEST_CASES), _MOST_CASES)

    @cached_property
    def _load(self) -> FloatArray:
        relaxation = self.relaxation
        load = np.bincount(relaxation.unit, weights=relaxation.work, minlength=relaxation.units)
        return load.astype(np.float64)

    @cached_property
    def _forwards(self) -> tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray, FloatArray]:
        relaxation = self.relaxation
        return relaxation.order, relaxation.work, *relaxation.edges_by_target

    @cached_property
    def _backwards(self) -> tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray, FloatArray]:
        relaxation = self.relaxation
        backwards = np.ascontiguousarray(relaxation.order[::-1])
        return backwards, relaxation.work, *relaxation.edges_by_source
