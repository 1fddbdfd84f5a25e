"""Layouts that run the micro-batches of a step side by side and one after the other.

Devices form a grid: a row for each group of micro-batches, a column for each stage, which is a
range of the model's pieces. A micro-batch's piece runs where its row meets the stage's column.

One column is data parallelism: each weight is on one device, sent to all others, and each gradient
comes back. One row is a pipeline, in which a device takes the earliest micro-batch that is ready,
forward or backward, as in PipeDream-Flush (Narayanan et al. 2021, "Memory-Efficient Pipeline-
Parallel DNN Training", section 3.2), or forwards first, as in GPipe (Huang et al. 2019, section
2.3). Where a column has several ranges of pieces, the pipeline is interleaved (Narayanan et al.
2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.layers import narrow_end
from placewire.optimizer.engines.layout import Cuts, Layout, Urgency
from placewire.optimizer.engines.pieces import Pieces

# How many ranges of pieces a column has.
_TURNS, _FEW_TURNS = (1, 2, 3, 4, 6), (1, 2)
# With much lateness an earlier micro-batch's backward half comes before a later one's forward.
_LATENESS = (1.0, 1 / 8, 1 / 32)
# In data parallelism it also lets gradients be added, and updates begin, before the last half ends.
_LATENESS_OF_ONE_COLUMN = (0.0, 1.0)
_URGENCIES = (
    Urgency(), Urgency(at_once=True), Urgency(at_once=True, gradients=True),
    Urgency(at_once=True, shared_late=True), Urgency(True, True, True),
)  # fmt: skip
_FEW_URGENCIES = Urgency(), Urgency(at_once=True, shared_late=True), Urgency(True, True, True)
# In how many ranges of layers weights, and gradients, travel together.
_EQUAL, _FEW_EQUAL = (1, 4, 8), (4,)
_FEW_CUTS = Cuts.equal(*_FEW_EQUAL)
# Small first ranges let the first layers begin, and the last gradients arrive, soon.
_GROWING = Cuts((0.1, 0.25, 0.45, 0.7), (0.1, 0.3, 0.6))
# By what part of a stage's work its end may be off, to lie where the fewest bytes cross.
_OFF_EQUAL = (0.0, 0.1, 0.25)
# On graphs of so many operators only this, because each grid takes a simulation.
_FEW_FROM, _FEW_OFF_EQUAL = 20_000, (0.1,)


def grid_layouts(pieces: Pieces) -> Iterator[Layout]:
    """Those that the micro-batches can use; pieces: of at least two micro-batches."""
    for shape in grid_shapes(pieces):
        yield from shape


def grid_shapes(pieces: Pieces) -> Iterator[list[Layout]]:
    """The layouts of one number of rows and columns after those of another."""
    devices = len(pieces.devices)
    large = len(pieces.micro_batch) >= _FEW_FROM
    equal = _FEW_EQUAL if large or pieces.costing.bundles is None else _EQUAL
    urgencies = _FEW_URGENCIES if large else _URGENCIES
    ranges = [*map(Cuts.equal, equal), *([_GROWING] if pieces.costing.bundles is not None else [])]
    for used in sorted({min(pieces.micro_batches, devices), *_powers_of_two(devices)}):
        if used <= pieces.micro_batches:
            layout = _layout(pieces, pieces.devices[:used].reshape(used, 1), 1, 0.0)
            every = product(_LATENESS_OF_ONE_COLUMN, ranges, urgencies)
            yield [replace(layout, lateness=x, cuts=cuts, urgency=y) for x, cuts, y in every]
    seen = set[bytes]()
    off = _FEW_OFF_EQUAL if large else _OFF_EQUAL
    for columns in range(2, min(devices, pieces.count) + 1):
        if large and devices % columns and devices // columns > 1:
            continue
        for rows in _rows(devices, columns, pieces.micro_batches, few=large):
            grid = pieces.devices[: rows * columns].reshape(columns, rows).T
            shape = list[Layout]()
            for turns, off_equal in product(_TURNS, off):
                layout = _layout(pieces, grid, turns, off_equal)
                key = layout.home.tobytes()
                if key not in seen:
                    seen.add(key)
                    shape += (replace(layout, lateness=late) for late in _LATENESS)
            if shape:
                yield shape


def few_grid_layouts(pieces: Pieces) -> Iterator[Layout]:
    """One grid of each shape, and each but data parallelism also interleaved."""
    devices = len(pieces.devices)
    used = min(pieces.micro_batches, devices)
    layout = _layout(pieces, pieces.devices[:used].reshape(used, 1), 1, 0.0)
    yield replace(layout, cuts=_FEW_CUTS, urgency=Urgency(True, True, True))
    for columns in (*_powers_of_two(devices), devices):
        if not 2 <= columns <= pieces.count:
            continue
        for rows in _rows(devices, columns, pieces.micro_batches, few=True):
            grid = pieces.devices[: rows * columns].reshape(columns, rows).T
            for turns in _FEW_TURNS if rows == devices // columns else _FEW_TURNS[:1]:
                yield replace(_layout(pieces, grid, turns, _FEW_OFF_EQUAL[0]), lateness=1.0)


def _rows(devices: int, columns: int, micro_batches: int, *, few: bool) -> list[int]:
    """How many rows of so many columns are tried: as many as there are devices for, and fewer,
    since on a slow network more devices only send more. few: only one row beside those."""
    most = devices // columns
    rows = {1, most, *(() if few else _powers_of_two(most))}
    return sorted(count for count in rows if count <= micro_batches)


def _powers_of_two(below: int) -> Iterator[int]:
    power = 2
    while power < below:
        yield power
        power *= 2


def _layout(pieces: Pieces, grid: IntArray, turns: int, off_equal: float) -> Layout:
    """grid int64[rows, columns]: devices."""
    rows, columns = grid.shape
    speed = (1.0 / np.maximum(pieces.work.sum(axis=0), 1e-300))[grid].sum(axis=0)
    shares = np.cumsum(np.tile(speed, turns)) / (speed.sum() * turns)
    last = _stage_ends(pieces, shares, off_equal)
    stage = np.searchsorted(last, np.arange(pieces.count), side="left") % columns
    # A micro-batch takes so long in each row, at the row's slowest stage.
    seconds = [
        max(pieces.work[stage == c, grid[r, c]].sum() for c in range(columns)) for r in range(rows)
    ]
    row, turn = np.empty((2, pieces.micro_batches), dtype=np.int64)
    ends, taken = np.zeros(rows), np.zeros(rows, dtype=np.int64)
    for m in range(pieces.micro_batches):
        first = int((ends + seconds).argmin())
        row[m], turn[m] = first, taken[first]
        ends[first] += seconds[first]
        taken[first] += 1
    return Layout(np.ascontiguousarray(grid[row].T[stage]), turn, 0.0)


def _stage_ends(pieces: Pieces, shares: FloatArray, off_equal: float) -> IntArray:
    """int64[stages - 1]: the last piece of each stage but the last one. shares float64[stages]: the
    part of the work up to each stage's end."""
    found = []
    for before, share, after in zip([0.0, *shares], shares, shares[1:], strict=False):
        off = off_equal * min(share - before, after - share)
        found.append(narrow_end(pieces.ends[:-1], pieces.crossing[:-1], share, off))
    return np.array(sorted(found), dtype=np.int64)
