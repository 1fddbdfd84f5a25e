"""Pieces of a step: a few neighbouring layers, forward and backward, with their weights.

The copies of a piece in the micro-batches may run on devices of their own. So a decision has a
device for each piece in each micro-batch, hundreds of numbers where the step has tens of thousands
of operators.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.common import common_operators
from placewire.optimizer.engines.costing import Costing, Found
from placewire.optimizer.engines.layered_bundles import layered_bundles
from placewire.optimizer.engines.layers import (
    crossing_bytes,
    layers_of,
    ranges_of,
    work_and_weights,
)
from placewire.optimizer.engines.layout import Layout
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.kernels.annealing.whole_pieces import PieceTables, expanded
from placewire.optimizer.problem import Problem

# The most pieces; the layers between two cuts have this part of the step's work and weights.
_MOST_PIECES = 48


def has_pieces(problem: Problem) -> bool:
    """Whether pieces are worth a search: the step has several micro-batches, its graph says what
    its layers are, and there are several devices."""
    return len(problem.cluster.devices) > 1 and layered_bundles(problem) is not None


class Pieces:
    """The pieces of a problem whose graph has several micro-batches. work float64[pieces, D]: mean
    seconds of a piece in one micro-batch, by device; ends float64[pieces]: the part of the step's
    work up to each piece's end; crossing float64[pieces]: the bytes that cross each piece's end in
    one micro-batch."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.problem, self.costing = problem, Costing(problem)
        unit = units.unit_of_operator(problem)
        self.micro_batch = _of_units(unit, graph.micro_batch)
        self.micro_batches = int(self.micro_batch.max(initial=-1)) + 1
        mean = units.mean_seconds(problem)
        layer = layers_of(graph, unit, mean)
        piece = np.zeros(len(unit), dtype=np.int64)
        if layer is not None:
            piece = ranges_of(graph, layer, work_and_weights(graph, mean), _MOST_PIECES)
        self.count = int(piece.max(initial=-1)) + 1
        self.crossing = crossing_bytes(graph, piece, self.count)
        known = np.where(np.isfinite(problem.seconds), problem.seconds, mean[:, None])
        inside = self.micro_batch >= 0
        self.work = np.stack(
            [np.bincount(piece[inside], column[inside], self.count) for column in known.T], axis=1
        ) / max(self.micro_batches, 1)  # fmt: skip
        total = np.bincount(piece, mean, self.count)
        self.ends = np.cumsum(total) / max(float(total.sum()), 1e-300)
        self.devices = _fastest(problem)
        self.rank = units.upward_rank(problem, units.typical_transfer_seconds(problem))
        self.longest = float(self.rank.max(initial=0.0))
        self.no_time = known.max(axis=1, initial=0.0) == 0.0
        self.for_gradients = _for_gradients(graph, self.micro_batch)
        self.common = common_operators(graph)
        self.tables = self._tables(unit, piece)

    def _tables(self, unit: IntArray, piece: IntArray) -> PieceTables:
        problem, graph = self.problem, self.problem.graph
        shared = self.micro_batch < 0
        held = units.unit_sums(unit, np.where(shared, graph.weight_bytes, 0))
        heavy = np.argsort(-held, kind="stable").astype(np.int64)
        _, first = np.unique(unit, return_index=True)
        server = problem.cluster.server_of_device
        rate = np.maximum(problem.usable_nic_rates.sum(axis=1), 1.0)[server]
        order = graph.topological_order
        return PieceTables(
            piece, self.micro_batch, unit, first.astype(np.int64), heavy[held[heavy] > 0], held,
            self._read(unit), units.unit_able(problem, unit), order[shared[order]],
            np.ascontiguousarray(rate), self.devices,
        )  # fmt: skip

    def _read(self, unit: IntArray) -> BoolArray:
        """bool[units, micro-batches]: which of them read tensors of the unit, or all: a replica of
        a weight is for some."""
        graph = self.problem.graph
        read = np.zeros((int(unit.max(initial=-1)) + 1, self.micro_batches), dtype=np.bool_)
        producer = np.repeat(graph.tensor_producer, np.diff(graph.consumers_start))
        reader = self.micro_batch[graph.consumers]
        inside = reader >= 0
        read[unit[producer[inside]], reader[inside]] = True
        return read | ~read.any(axis=1, keepdims=True)

    def solution(self, layout: Layout) -> Solution:
        home = np.ascontiguousarray(layout.home, dtype=np.int64)
        device = expanded(self.costing.tables, self.tables, home)
        inside = self.micro_batch >= 0
        later = np.where(inside, 1 + layout.turn[self.micro_batch], 0)
        priority = self.rank - later * (layout.lateness * self.longest)
        if layout.urgency.shared_late:
            priority += 2.0 * self.longest * inside
        if layout.urgency.gradients:
            priority += 2.0 * self.longest * self.for_gradients
        if layout.urgency.at_once:
            priority[self.no_time] += 8.0 * self.longest
        if layout.urgency.common:
            priority[self.common] += 16.0 * self.longest
        return Solution(device, priority, None, layout.cuts, layout)

    def cost(self, layout: Layout) -> Found:
        return self.costing.cost(self.solution(layout))


def _for_gradients(graph: OperatorGraph, micro_batch: IntArray) -> BoolArray:
    """bool[n]: the operators of one micro-batch whose results are read by shared operators alone,
    or within their own module by others of these."""
    found = np.zeros(graph.operator_count, dtype=np.bool_)
    start, outputs = graph.outputs
    readers_start, readers = graph.consumers_start.tolist(), graph.consumers.tolist()
    inside, modules = (micro_batch >= 0).tolist(), graph.modules

    def leads_there(i: int, reader: int) -> bool:
        return not inside[reader] or (bool(found[reader]) and modules[reader] == modules[i])

    for i in graph.topological_order[::-1].tolist():
        made = outputs[start[i] : start[i + 1]].tolist()
        read = [r for e in made for r in readers[readers_start[e] : readers_start[e + 1]]]
        found[i] = inside[i] and len(read) > 0 and all(leads_there(i, r) for r in read)
    return found


def _of_units(unit: IntArray, micro_batch: IntArray) -> IntArray:
    """int64[n]: the micro-batch of each operator's unit; -1 where its operators are of several."""
    count = int(unit.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    inside = micro_batch >= 0
    np.minimum.at(least, unit[inside], micro_batch[inside])
    np.maximum.at(most, unit[inside], micro_batch[inside])
    of_unit: IntArray = np.where(least == most, most, -1)[unit]
    return of_unit


def _fastest(problem: Problem) -> IntArray:
    """int64[D]: devices that run everything before those that do not, then by speed."""
    finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
    lacking = (~np.isfinite(problem.seconds)).sum(axis=0)
    return np.lexsort((finite.sum(axis=0), lacking)).astype(np.int64)
