"""Solves a program with HiGHS, the open solver, through scipy.

scipy's HiGHS knows no cones: slow >= switch^2 / rate is replaced by tangents from below, which are
exact where they touch (outer approximation, Duran and Grossmann 1986). Each round solves the
program with the tangents so far, which gives a bound; then, with the whole numbers fixed, it adds
tangents until they touch at the answer, which gives an incumbent that keeps the true constraint.
The rounds end when bound and incumbent meet.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.published.formulations.answer import NO_ANSWER, Answer, Heard
from placewire.optimizer.published.formulations.program import (
    OBJECTIVE,
    Hyperbolas,
    Program,
    RowWriter,
)

# The rates where the first tangents touch, as fractions of the widest rate.
FIRST_POINTS = tuple(2.0**-k for k in range(6))
# The relative error allowed in slow * rate >= switch^2, and the gap at which a solve ends that was
# asked for gap 0.
TOLERANCE = 1e-6
# A tangent at this relative distance from another touches within the tolerance: 1 - (1 - x)^2.
_SAME_POINT = 5e-4
_MOST_FIXED_ROUNDS = 40
# What a start gets even where no time is left: what remains of the program is small once its
# devices are known, and an answer that is no worse than its starts is worth a moment on a busy
# machine.
_LEAST_START_SECONDS = 2.0


def solve(program: Program, seconds: float, gap: float, heard: Heard | None = None) -> Answer:
    """Solves within `seconds`, to the relative gap. The answer is never worse than the program's
    best start."""
    deadline = time.monotonic() + seconds
    tangents = _Tangents(program) if len(program.hyperbolas) else None
    best = replace(_best_start(program, tangents, deadline), words="time limit", rounds=0)
    if best.values is not None:
        if heard is not None:
            heard(best)
        high = program.high.copy()
        high[OBJECTIVE] = min(high[OBJECTIVE], best.objective * (1 + TOLERANCE))
        program = replace(program, high=high)
    if tangents is None:
        found = _mixed(program, None, deadline - time.monotonic(), gap)
        return found if found.objective <= best.objective else _of_start(best, found)
    while (left := deadline - time.monotonic()) > 0:
        found = _mixed(program, tangents, left, gap)
        bound = max(best.bound, found.bound)
        best = replace(best, bound=bound, words=found.words, rounds=best.rounds + 1)
        if found.values is None:
            return _of_start(best, found)
        known = tangents.count
        true = _with_whole_fixed(program, tangents, found.values)
        if true.objective < best.objective:
            best = replace(best, values=true.values, objective=true.objective)
        if heard is not None:
            heard(best)
        if best.objective - best.bound <= max(gap, TOLERANCE) * abs(best.objective):
            return replace(best, words=f"within the gap after {best.rounds} rounds")
        if tangents.count == known and "limit" not in found.words:
            return replace(best, words=f"no tangent left to add after {best.rounds} rounds")
    return replace(best, words="time limit")


def _of_start(best: Answer, found: Answer) -> Answer:
    """The best answer that was known before, with the bound and the words of a solve that found no
    better one. The best answer is optimal where the solver proved that there is none."""
    if best.values is None:
        return replace(best, infeasible=found.infeasible, bound=max(best.bound, found.bound))
    if found.infeasible:
        return replace(best, bound=best.objective, words="within the gap")
    return replace(best, bound=max(best.bound, found.bound), words=found.words)


def _best_start(program: Program, tangents: _Tangents | None, deadline: float) -> Answer:
    """The best of the program's starts; NO_ANSWER where none is feasible."""
    best = NO_ANSWER
    for start in program.starts:
        low, high = np.zeros(len(program.high)), program.high.copy()
        low[start.columns] = high[start.columns] = start.values
        options = {"time_limit": max(deadline - time.monotonic(), _LEAST_START_SECONDS)}
        result = _milp(program, tangents, low, high, program.whole, options)
        if result.x is None:
            continue
        values = np.asarray(result.x, dtype=np.float64)
        found = Answer(values, float(result.fun), -np.inf, infeasible=False, words="")
        if tangents is not None:
            found = _with_whole_fixed(program, tangents, values)
        best = min(best, found, key=lambda answer: answer.objective)
    return best


@dataclass
class _Tangents:
    """slow >= 2 switch / p - rate / p^2, which touches switch^2 / rate at rate = p * switch."""

    program: Program
    rows: RowWriter = field(default_factory=RowWriter)
    points: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rate in np.unique(self.program.hyperbolas.rate).tolist():
            for part in FIRST_POINTS:
                self.add(rate, part * float(self.program.high[rate]))

    @property
    def count(self) -> int:
        return self.rows.count

    def add(self, rate: int, point: float) -> None:
        """For every hyperbola of that rate, unless a tangent so near makes no difference."""
        known = self.points.setdefault(rate, [])
        if any(abs(point - other) <= _SAME_POINT * other for other in known):
            return
        known.append(point)
        cones = self.program.hyperbolas
        mine = cones.rate == rate
        columns = np.stack([cones.slow[mine], cones.switch[mine], cones.rate[mine]], axis=1)
        # The row is multiplied by p, so that its numbers stay near 1 where p is small.
        self.rows.add(columns, [-point, 2.0, -1.0 / point], 0.0)

    def add_where_cut(self, values: FloatArray) -> bool:
        """Adds tangents where the answer lies below a hyperbola; returns whether it added any."""
        cones = self.program.hyperbolas
        slow, rate, switch = (values[c] for c in (cones.slow, cones.rate, cones.switch))
        cut = (switch > 0.5) & (slow * rate < 1.0 - TOLERANCE)
        before = self.count
        for column in np.unique(cones.rate[cut]).tolist():
            self.add(column, max(float(values[column]), 1e-9))
        return self.count > before


def _mixed(program: Program, tangents: _Tangents | None, seconds: float, gap: float) -> Answer:
    options = {"time_limit": max(seconds, 0.01), "mip_rel_gap": gap}
    low = np.zeros(len(program.high))
    result = _milp(program, tangents, low, program.high, program.whole, options)
    dual = getattr(result, "mip_dual_bound", None)
    return Answer(
        values=None if result.x is None else np.asarray(result.x, dtype=np.float64),
        objective=np.inf if result.x is None else float(result.fun),
        bound=-np.inf if dual is None or not np.isfinite(dual) else float(dual),
        infeasible=result.status == 2,
        words="time limit" if result.status == 1 else str(result.message).split("(")[0].strip(),
    )


def _with_whole_fixed(program: Program, tangents: _Tangents, values: FloatArray) -> Answer:
    """The best continuous part for these whole numbers, which a linear program finds in rounds."""
    chosen = np.round(values)
    low = np.where(program.whole, chosen, 0.0)
    high = np.where(program.whole, chosen, program.high)
    nothing = np.zeros(len(high), dtype=bool)
    best = NO_ANSWER
    for _ in range(_MOST_FIXED_ROUNDS):
        result = _milp(program, tangents, low, high, nothing, {})
        if result.x is None:  # only the solver's tolerance let these whole numbers through
            return best
        found = np.asarray(result.x, dtype=np.float64)
        best = Answer(found, float(result.fun), -np.inf, False, "")
        if not tangents.add_where_cut(found):
            break
    return best


def _milp(
    program: Program,
    tangents: _Tangents | None,
    low: FloatArray,
    high: FloatArray,
    whole: Any,
    options: dict[str, float],
) -> Any:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import vstack

    columns = len(high)
    objective = np.zeros(columns)
    objective[OBJECTIVE] = 1.0
    matrix, limit = program.matrix, program.limit
    least = np.where(program.equal, limit, -np.inf)
    if tangents is not None and tangents.count:
        extra, extra_limit, _ = tangents.rows.finish(columns)
        matrix = vstack([matrix, extra], format="csr")
        limit = np.concatenate([limit, extra_limit])
        least = np.concatenate([least, np.full(len(extra_limit), -np.inf)])
    rows = [LinearConstraint(matrix, least, limit)] if len(limit) else []
    with standard_output_kept():
        return milp(
            objective, integrality=np.asarray(whole, dtype=np.int64), bounds=Bounds(low, high),
            constraints=rows, options=options,
        )  # fmt: skip


@contextmanager
def standard_output_kept() -> Iterator[None]:
    """Sends what HiGHS prints to standard error: standard output is for results, and HiGHS 1.12
    prints a line now and then, whatever its options say."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def tangent_rows(hyperbolas: Hyperbolas) -> int:
    """The number of rows that the first tangents add."""
    return len(hyperbolas) * len(FIRST_POINTS)
