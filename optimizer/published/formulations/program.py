"""A mixed-integer program with hyperbolic constraints, independent of any solver.

    minimise  v[OBJECTIVE]   subject to   A v <= limit (or = limit),   0 <= v <= high,
              v[whole] integer,   v[slow] * v[rate] >= v[switch]^2  for each hyperbola

The last is a rotated second-order cone, hence convex. With switch = 1 it says slow >= 1 / rate;
with switch = 0 it says nothing.

Rows come in families, one for each numbered constraint of a paper. A family knows how many rows it
will have before it writes any, so that a program that is too large is refused before it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placewire.optimizer.arrays import FloatArray, IntArray

OBJECTIVE = 0


@dataclass(frozen=True)
class Size:
    """The size of a program as it would be handed to a solver that knows cones."""

    rows: int
    columns: int
    nonzeros: int
    hyperbolas: int


class RowWriter:
    """Collects blocks of rows; all rows of a block have the same number of terms."""

    def __init__(self) -> None:
        self.count = 0
        self._row: list[IntArray] = []
        self._column: list[IntArray] = []
        self._value: list[FloatArray] = []
        self._limit: list[FloatArray] = []
        self._equal: list[Any] = []

    def add(
        self, columns: IntArray, values: ArrayLike, limit: ArrayLike, *, equal: bool = False
    ) -> None:
        """Adds k rows: columns int64[k, t]; values broadcast to [k, t] and limit to [k]."""
        k, t = columns.shape
        self._row.append(np.repeat(np.arange(self.count, self.count + k), t))
        self._column.append(columns.ravel())
        self._value.append(np.broadcast_to(np.asarray(values, dtype=float), (k, t)).ravel())
        self._limit.append(np.broadcast_to(np.asarray(limit, dtype=float), (k,)))
        self._equal.append(np.full(k, equal))
        self.count += k

    def finish(self, columns: int) -> tuple[Any, FloatArray, Any]:
        """(A as a scipy csr_array[rows, columns], limit float64[rows], equal bool[rows])"""
        from scipy.sparse import coo_array

        if not self.count:
            return coo_array((0, columns)).tocsr(), np.empty(0), np.empty(0, dtype=bool)
        entries = np.concatenate(self._value)
        places = (np.concatenate(self._row), np.concatenate(self._column))
        matrix = coo_array((entries, places), shape=(self.count, columns)).tocsr()
        return matrix, np.concatenate(self._limit), np.concatenate(self._equal)


@dataclass(frozen=True)
class Family:
    """Constraints of one kind. equations: as the paper numbers them."""

    equations: str
    rows: int
    nonzeros: int
    write: Callable[[RowWriter], None]


def block(
    equations: str, columns: IntArray, values: ArrayLike, limit: ArrayLike, *, equal: bool = False
) -> Family:
    """A family that is one block of rows; its arguments are those of RowWriter.add."""
    return Family(
        equations, len(columns), columns.size,
        lambda rows: rows.add(columns, values, limit, equal=equal),
    )  # fmt: skip


class Columns:
    """Collects blocks of variables; each variable lies between 0 and its upper limit."""

    def __init__(self) -> None:
        self.count = 0
        self._high: list[FloatArray] = []
        self._whole: list[Any] = []

    def add(
        self, shape: tuple[int, ...], high: ArrayLike = 1.0, *, whole: bool = False
    ) -> IntArray:
        """The numbers of the new variables, int64[shape]; high broadcasts to the shape."""
        size = int(np.prod(shape, dtype=np.int64))
        self._high.append(np.broadcast_to(np.asarray(high, dtype=float), shape).ravel())
        self._whole.append(np.full(size, whole))
        self.count += size
        return np.arange(self.count - size, self.count, dtype=np.int64).reshape(shape)

    @property
    def high(self) -> FloatArray:
        return np.concatenate(self._high)

    @property
    def whole(self) -> Any:
        return np.concatenate(self._whole)


@dataclass(frozen=True)
class Hyperbolas:
    """slow * rate >= switch^2; each field holds the numbers of the columns, int64[h]."""

    slow: IntArray
    rate: IntArray
    switch: IntArray

    def __len__(self) -> int:
        return len(self.slow)


NO_HYPERBOLAS = Hyperbolas(*(np.empty(0, dtype=np.int64) for _ in range(3)))


@dataclass(frozen=True)
class Program:
    """A program that is built: matrix is a scipy csr_array[rows, columns]; whole and equal are bool
    arrays. starts: values with which the solver begins, each for some columns."""

    high: FloatArray
    whole: Any
    matrix: Any
    limit: FloatArray
    equal: Any
    hyperbolas: Hyperbolas
    starts: tuple[Start, ...] = ()


@dataclass(frozen=True)
class Start:
    """columns int64[k] and their values float64[k]; the solver finds those of all others."""

    columns: IntArray
    values: FloatArray


@dataclass(frozen=True)
class Draft:
    """The program of a formulation for one problem, sized and not yet built."""

    columns: Columns
    families: Sequence[Family]
    hyperbolas: Hyperbolas = NO_HYPERBOLAS

    @cached_property
    def size(self) -> Size:
        return Size(
            rows=sum(family.rows for family in self.families),
            columns=self.columns.count,
            nonzeros=sum(family.nonzeros for family in self.families),
            hyperbolas=len(self.hyperbolas),
        )

    def build(self) -> Program:
        writer = RowWriter()
        for family in self.families:
            before = writer.count
            family.write(writer)
            assert writer.count - before == family.rows, family.equations
        matrix, limit, equal = writer.finish(self.columns.count)
        return Program(self.columns.high, self.columns.whole, matrix, limit, equal, self.hyperbolas)
