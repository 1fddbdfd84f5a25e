"""The best of the starts of a program of the thesis or of QuickP, known before a solver begins.

The device of each operator and the bandwidth of each pair of servers decide a step (own_step.py),
which takes no solver. So the program has an answer however large it is and however little time
there is, and no solver need look for a longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.published.formulations.answer import NO_ANSWER, Answer
from placewire.optimizer.published.formulations.own_step import own_step
from placewire.optimizer.published.formulations.papers import Formulation
from placewire.optimizer.published.formulations.whole_numbers import WholeNumbers


@dataclass(frozen=True)
class KnownStart:
    """A start: devices int64[n], rates in parts int64[k], and its step."""

    device: IntArray
    parts: IntArray
    seconds: float


def best_start(formulation: Formulation, starts: Sequence[IntArray]) -> KnownStart | None:
    """The shortest start that the program admits, each with every limit evenly over the pairs that
    it uses; None where it admits none."""
    whole = WholeNumbers(formulation)
    found = []
    for device in starts:
        if formulation.instance.admits(device):
            parts = whole.even_parts(device)
            found.append(KnownStart(device, parts, step_seconds(whole, device, parts)))
    return min(found, key=lambda start: start.seconds, default=None)


def step_seconds(whole: WholeNumbers, device: IntArray, parts: IntArray) -> float:
    decided = whole.formulation.transfers.rate is not None
    rates = whole.rates(parts) if decided else None
    return own_step(whole.instance, whole.network, device, rates)


def values_of(whole: WholeNumbers, device: IntArray, parts: IntArray) -> FloatArray:
    """The values of the program's columns, of which only x and the decided rates are set."""
    formulation, transfers = whole.formulation, whole.formulation.transfers
    values = np.zeros(formulation.draft.columns.count)
    values[formulation.x[np.arange(len(device)), device]] = 1.0
    if transfers.rate is not None:
        values[transfers.rate] = whole.rates(parts) / transfers.rate_unit
    return values


def known_answer(formulation: Formulation, start: KnownStart | None) -> Answer:
    """The start as an answer of which no bound is known; NO_ANSWER without one."""
    if start is None:
        return NO_ANSWER
    return Answer(
        values_of(WholeNumbers(formulation), start.device, start.parts),
        start.seconds / formulation.horizon_seconds,
        bound=0.0,
        infeasible=False,
        words="time limit",
        rounds=0,
    )
