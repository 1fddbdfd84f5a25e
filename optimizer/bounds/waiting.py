"""Bounds by waiting: what follows from a unit runs on the unit's device, or waits for a transfer.

Let one unit be on a device, in any placement. An operator has a least time before its start there,
and one, mostly longer, on any other device (`starts_in_two_places`), and so after its end. Take the
operators that start no earlier than a elsewhere, and after whose end there no less than b is left.
Let a' and b' be the least of the same times on the unit's device among them. In a step of T the
unit's device has at most T - a' - b' for them, and each of the other D - 1 at most T - a - b, or no
time where T is less than a + b. So T is at least the smaller of

    their work + a' + b'    and    (their work + a' + b' + (D - 1) (a + b)) / D.

Where a weight that everything needs is large, or made into something large, this is how long all
devices but one begin late; for gradients the same holds at the end.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.bounds.relaxation import Relaxation
from placewire.optimizer.kernels.graphs.two_places import starts_in_two_places

# The units behind which the longest path follows are tried, and those behind which it lies: _EFFORT
# over the number of operators of each, in this range.
_EFFORT, _FEWEST_UNITS, _MOST_UNITS = 40_000, 2, 6
# Thresholds per axis; more of them sharpen the bound little.
_THRESHOLDS = 100


def waiting_bound(relaxation: Relaxation) -> Bound:
    """For devices that run every operator in the same time."""
    sides = (np.where(relaxation.unit == unit, 1, 0) for unit in _units(relaxation).tolist())
    best = max((_seconds(relaxation, side) for side in sides), default=0.0)
    return Bound(best, "work over all devices, where all but one wait for what that one sends")


def _units(relaxation: Relaxation) -> IntArray:
    head, tail = relaxation.heads_and_tails
    count = _EFFORT // max(relaxation.operators, 1)
    count = min(max(count, _FEWEST_UNITS), _MOST_UNITS)
    longest = np.zeros((2, relaxation.units))
    for row, times in zip(longest, (head, tail), strict=True):
        np.maximum.at(row, relaxation.unit, times)
    order: IntArray = np.unique(np.argsort(-longest, axis=1, kind="stable")[:, :count])
    return order


def _seconds(relaxation: Relaxation, side: IntArray) -> float:
    head, tail = relaxation.heads_and_tails
    backwards = np.ascontiguousarray(relaxation.order[::-1])
    busy = np.flatnonzero(relaxation.work > 0.0)
    begins = starts_in_two_places(
        relaxation.order, relaxation.work, *relaxation.edges_by_target, head, side
    )
    ends = starts_in_two_places(backwards, relaxation.work, *relaxation.edges_by_source, tail, side)
    row, a = _levels(begins[1][busy])
    column, b = _levels(ends[1][busy])
    work = np.zeros((len(a), len(b)))
    np.add.at(work, (row, column), relaxation.work[busy])
    work = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    around = sum(_least_from(row, column, times[0][busy], work.shape) for times in (begins, ends))
    alone = work + around
    others = (relaxation.devices - 1) * (a[:, None] + b[None, :])
    steps = np.minimum(alone, (alone + others) / relaxation.devices)
    return float(steps[work > 0.0].max(initial=0.0))


def _levels(times: FloatArray) -> tuple[IntArray, FloatArray]:
    """(the last level that each of the times reaches, the levels ascending). What never runs
    elsewhere, inf, reaches all."""
    finite = times[np.isfinite(times)]
    if not len(finite):
        return np.zeros(len(times), dtype=np.int64), np.zeros(1)
    levels = np.unique(np.quantile(finite, np.linspace(0.0, 1.0, _THRESHOLDS), method="nearest"))
    return np.searchsorted(levels, times, side="right") - 1, levels


def _least_from(
    row: IntArray, column: IntArray, times: FloatArray, shape: tuple[int, ...]
) -> FloatArray:
    """The least of the times with at least this row and column, inf where there are none."""
    least = np.full(shape, np.inf)
    np.minimum.at(least, (row, column), times)
    least = np.minimum.accumulate(least[::-1, ::-1], axis=0)
    from_here: FloatArray = np.minimum.accumulate(least, axis=1)[::-1, ::-1]
    return from_here
