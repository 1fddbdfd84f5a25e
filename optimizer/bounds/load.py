"""Bounds by work: all operators' over all devices, and that of operators which share a window."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.bounds.relaxation import Relaxation

# Thresholds per axis of `load_between`; more of them sharpen it little.
_THRESHOLDS = 200
_WEIGHT_ROUNDS = 60


def load_between(relaxation: Relaxation, work: FloatArray) -> Bound:
    """Operators with head >= a and tail >= b all run in a window of the step's length less a and b.
    work float64[n] as `share_of_load` gives it."""
    head, tail = relaxation.heads_and_tails
    levels = np.linspace(0.0, 1.0, _THRESHOLDS)
    heads = np.unique(np.quantile(head, levels, method="nearest"))
    tails = np.unique(np.quantile(tail, levels, method="nearest"))
    inside = np.zeros((len(heads), len(tails)))
    row = np.searchsorted(heads, head, side="right") - 1
    column = np.searchsorted(tails, tail, side="right") - 1
    np.add.at(inside, (row, column), work)
    inside = inside[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    best = np.where(inside > 0, heads[:, None] + inside + tails[None, :], 0.0).max(initial=0.0)
    return Bound(float(best), "work over all devices between what must come before and after it")


def share_of_load(seconds: FloatArray) -> FloatArray:
    """work float64[n] from seconds float64[n, D]: the sum of work over any set of operators is at
    most the time that the set takes on any placement.

    For weights w >= 0 summing to 1: step >= sum_d w_d load_d >= sum_i min_d w_d seconds[i, d]. Like
    devices get equal weights; for unlike ones a few rounds find weights that even out their loads.
    """
    devices = seconds.shape[1]
    weights = np.full(devices, 1.0 / devices)
    best, best_value = weights, -1.0
    for attempt in range(1 if all_alike(seconds) else _WEIGHT_ROUNDS):
        weighted = seconds * weights
        chosen = weighted.argmin(axis=1)
        value = float(weighted.min(axis=1).sum())
        if value > best_value:
            best, best_value = weights, value
        load = np.bincount(
            chosen, weights=seconds[np.arange(len(chosen)), chosen], minlength=devices
        )
        scale = max(float(load.max()), 1e-300)
        weights = weights * np.exp(0.5 / np.sqrt(1 + attempt) * load / scale)
        weights = weights / weights.sum()
    least: FloatArray = (seconds * best).min(axis=1)
    return least


def all_alike(seconds: FloatArray) -> bool:
    """Whether all devices run every operator in the same time; seconds float64[n, D]."""
    return bool((seconds == seconds[:, :1]).all())
