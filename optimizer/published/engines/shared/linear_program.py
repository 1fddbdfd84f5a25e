"""Solves the linear programs of published methods with HiGHS, within a time limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.published.engines.shared.deadline import Deadline
from placewire.optimizer.published.formulations.highs import standard_output_kept
from placewire.optimizer.published.formulations.program import RowWriter


def least(objective: FloatArray, rows: RowWriter, high: FloatArray, until: Deadline) -> FloatArray:
    """float64[columns]: the v that minimises objective v subject to the rows and 0 <= v <= high.

    Raises OutOfTimeError, also where HiGHS ends for any other reason: the programs of these methods
    always have a solution.
    """
    from scipy.optimize import linprog

    matrix, limit, equal = rows.finish(len(objective))
    until.require("building its linear program")
    with standard_output_kept():
        found: Any = linprog(
            objective,
            A_ub=matrix[~equal], b_ub=limit[~equal], A_eq=matrix[equal], b_eq=limit[equal],
            bounds=np.stack([np.zeros(len(high)), high], axis=1), method="highs",
            options={"time_limit": max(until.left_seconds, 0.01)},
        )  # fmt: skip
    if found.status != 0:
        raise until.over(f"its linear program of {len(limit):,} rows")
    return np.asarray(found.x, dtype=np.float64)
