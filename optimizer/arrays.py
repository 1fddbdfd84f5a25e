"""The arrays that the optimizer computes with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def row_starts(row: IntArray, rows: int) -> IntArray:
    """Offsets int64[rows + 1] of a CSR table whose items lie in these rows int64[...]."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
