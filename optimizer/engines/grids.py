"""Starts that run the micro-batches of a step side by side and one after the other.

Devices form a grid: a row for each group of micro-batches, a column for each stage, which is a
piece of the model's layers. A micro-batch's operators of a stage run where its row meets the
stage's column. What micro-batches share, which is weights with the sums of their gradients and
their updates, is spread over its column by bytes: each weight is sent once to every other device of
the column, each gradient back.

One column is data parallelism. One row is a pipeline, in which a device takes the earliest
micro-batch that is ready, forward or backward, as in PipeDream-Flush (Narayanan et al. 2021,
"Memory-Efficient Pipeline-Parallel DNN Training", section 3.2). Where a column has several pieces
of the layers, the pipeline is interleaved (Narayanan et al. 2021, "Efficient Large-Scale Language
Model Training on GPU Clusters", section 2.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.layering import layers_of
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.problem import Problem

# How many pieces of the layers a column has.
_TURNS = (1, 2)


@dataclass(frozen=True)
class _Step:
    """unit, part (the micro-batch) int64[n]; layer float64[n]; rank float64[n]."""

    problem: Problem
    unit: IntArray
    part: IntArray
    layer: FloatArray | None
    rank: FloatArray

    @property
    def count(self) -> int:
        return int(self.part.max(initial=-1)) + 1


def grid_starts(problem: Problem) -> Iterator[Solution]:
    """One for each grid that the micro-batches can use; none where there is only one."""
    graph, devices = problem.graph, len(problem.cluster.devices)
    unit, work = units.unit_of_operator(problem), units.mean_seconds(problem)
    part = _of_units(unit, graph.micro_batch)
    if devices < 2 or part.max(initial=-1) < 1:
        return
    rank = units.upward_rank(problem, units.typical_transfer_seconds(problem))
    step = _Step(problem, unit, part, layers_of(graph, unit, work), rank)
    fastest = _fastest(problem)
    for used in sorted({min(step.count, devices), *(2**k for k in range(1, 12) if 2**k < devices)}):
        if used <= step.count:
            yield _placed(step, fastest[:used].reshape(used, 1), 1)
    if step.layer is None:
        return
    for columns in range(2, devices + 1):
        rows = devices // columns
        if rows <= step.count and (devices % columns == 0 or rows == 1):
            for turns in _TURNS:
                yield _placed(step, fastest[: rows * columns].reshape(columns, rows).T, turns)


def _fastest(problem: Problem) -> IntArray:
    """int64[D]: devices that run everything before those that do not, then by speed."""
    finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
    lacking = (~np.isfinite(problem.seconds)).sum(axis=0)
    return np.lexsort((finite.sum(axis=0), lacking)).astype(np.int64)


def _placed(step: _Step, grid: IntArray, turns: int) -> Solution:
    """grid int64[rows, columns]: devices."""
    problem, part = step.problem, step.part
    rows, columns = grid.shape
    inside = part >= 0
    # What a device cannot run goes elsewhere below, and counts here as on others.
    known = np.where(
        np.isfinite(problem.seconds), problem.seconds, units.mean_seconds(problem)[:, None]
    )
    stage = np.zeros(len(part), dtype=np.int64)
    if columns > 1:
        assert step.layer is not None
        speed = (1.0 / np.maximum(known.sum(axis=0), 1e-300))[grid].sum(axis=0)
        cuts = np.cumsum(np.tile(speed, turns)[:-1]) / (speed.sum() * turns)
        stage = np.searchsorted(cuts, step.layer, side="right") % columns
    seconds = _row_seconds(known, grid, stage, part, step.count)
    row, turn = np.empty(step.count, dtype=np.int64), np.empty(step.count, dtype=np.int64)
    ends, taken = np.zeros(rows), np.zeros(rows, dtype=np.int64)
    for k in np.argsort(-seconds.min(axis=0), kind="stable").tolist():
        first = int((ends + seconds[:, k]).argmin())
        ends[first] += seconds[first, k]
        row[k], turn[k] = first, taken[first]
        taken[first] += 1
    device = np.where(inside, grid[row[part], stage], -1)
    for column in range(columns):
        _spread_shared(problem, step.unit, device, ~inside & (stage == column), grid[:, column])
    _move_what_cannot_run(problem, step.unit, device, grid.T.ravel())
    priority = step.rank
    if columns > 1:
        later = np.where(inside, 1 + turn[part], 0)
        priority = priority - later * (float(priority.max(initial=0.0)) + 1.0)
    return Solution(device, priority, None)


def _row_seconds(
    known: FloatArray, grid: IntArray, stage: IntArray, part: IntArray, count: int
) -> FloatArray:
    """float64[rows, count]: what each micro-batch takes in each row, at the row's slowest stage.
    known float64[n, D]."""
    rows, columns = grid.shape
    inside = part >= 0
    cell = part[inside] * columns + stage[inside]
    of_device = {
        d: np.bincount(cell, known[inside, d], count * columns).reshape(count, columns)
        for d in set(grid.ravel().tolist())
    }
    return np.stack(
        [
            np.stack([of_device[int(d)][:, c] for c, d in enumerate(grid[r])]).max(axis=0)
            for r in range(rows)
        ]
    )


def _of_units(unit: IntArray, part: IntArray) -> IntArray:
    """int64[n]: the micro-batch of each operator's unit; -1 where its operators are of several."""
    count = int(unit.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    inside = part >= 0
    np.minimum.at(least, unit[inside], part[inside])
    np.maximum.at(most, unit[inside], part[inside])
    of_unit: IntArray = np.where(least == most, most, -1)[unit]
    return of_unit


def _spread_shared(
    problem: Problem, unit: IntArray, device: IntArray, shared: BoolArray, devices: IntArray
) -> None:
    """Gives the shared operators, which are whole units, one of these devices. Weights go, the
    largest first, to the device that holds least of them for the rate of its server's NICs; the
    rest to what reads it, or else to what it reads."""
    graph = problem.graph
    held = units.unit_sums(unit, np.where(shared, graph.weight_bytes, 0))
    server = problem.cluster.server_of_device[devices]
    rate = np.maximum(problem.usable_nic_rates.sum(axis=1)[server], 1.0)
    load = np.zeros(len(devices))
    of_unit = np.full(len(held), -1, dtype=np.int64)
    of_unit[unit] = device
    for u in np.argsort(-held, kind="stable").tolist():
        if held[u] <= 0:
            break
        least = int(((load + held[u]) / rate).argmin())
        load[least] += held[u]
        of_unit[u] = devices[least]
    order = graph.topological_order
    order = order[shared[order]].tolist()
    for i in reversed(order):
        if of_unit[unit[i]] < 0:
            readers = (c for e in graph.output_tensors(i) for c in graph.tensor_consumers(e))
            found = (int(of_unit[unit[c]]) for c in readers if shared[c])
            of_unit[unit[i]] = next((d for d in found if d >= 0), -1)
    for i in order:
        if of_unit[unit[i]] < 0:
            made = (graph.tensor_producer[e] for e in graph.input_tensors(i))
            found = (int(of_unit[unit[j]]) for j in made)
            of_unit[unit[i]] = next((d for d in found if d >= 0), int(devices[0]))
    device[shared] = of_unit[unit[shared]]


def _move_what_cannot_run(
    problem: Problem, unit: IntArray, device: IntArray, devices: IntArray
) -> None:
    """Moves units that their device cannot run to the first of the devices, then of all, that
    can."""
    able = units.unit_able(problem, unit)
    of_unit = np.empty(len(able), dtype=np.int64)
    of_unit[unit] = device
    lost = ~able[np.arange(len(able)), of_unit] & able.any(axis=1)
    preferred = np.concatenate([devices, np.setdiff1d(np.arange(able.shape[1]), devices)])
    of_unit[lost] = preferred[able[lost][:, preferred].argmax(axis=1)]
    device[:] = of_unit[unit]
