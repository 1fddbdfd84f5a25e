"""Bundles along the model: what two devices exchange for a range of layers travels at once.

A step in micro-batches sends every weight to all devices that read it, and every gradient back, in
the order of the layers. So weights of neighbouring layers can share a message, as units do in FSDP,
and gradients, as buckets do in DistributedDataParallel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.common import common_operators
from placewire.optimizer.engines.layers import layers_of, work_and_weights
from placewire.optimizer.engines.layout import Cuts
from placewire.optimizer.graph.halves import forward_half
from placewire.optimizer.kernels.simulation.labelled_bundles import (
    Labels,
    labelled_bundles,
)
from placewire.optimizer.kernels.tables import FIRST_COME, tables_of
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.bundles import Bundle, PlacedStep

_KEPT = "_layered_bundles"
# The labels of so many cuts are kept.
_MOST_KEPT = 64


class LayeredBundles:
    """The ways to bundle a step in micro-batches whose graph says what its layers are."""

    def __init__(self, problem: Problem, layer: FloatArray, work: FloatArray) -> None:
        graph = self._graph = problem.graph
        self._at = _parts_before(layer, work_and_weights(graph, work))
        self._is_weight = np.diff(graph.inputs[0]) == 0
        self._is_common = common_operators(graph) & ~self._is_weight
        forward = forward_half(graph)
        self._half = np.zeros(len(layer), dtype=np.int64) if forward is None else forward * 1
        self._mark = np.random.default_rng(0).random(graph.tensor_count)
        self._tables = tables_of(problem)
        self._copy = problem.copy_seconds_per_byte / 8.0
        self.labels = lru_cache(_MOST_KEPT)(self._labels)

    def _labels(self, cuts: Cuts) -> Labels:
        part, is_weight, is_common = self._graph.micro_batch, self._is_weight, self._is_common
        joins = is_weight | is_common | (part >= 0)
        ends = np.searchsorted(cuts.weights, self._at), np.searchsorted(cuts.gradients, self._at)
        label = _numbers(joins, is_weight, part, np.where(is_weight | is_common, *ends))
        layers = (part >= 0) & cuts.layers
        waited = _numbers(layers, self._half, part, self._at) + (label.max(initial=-1) + 1)
        made = self._graph.tensor_producer
        waited = np.where(is_weight | is_common, label, np.where(layers, waited, -1))
        return Labels(label[made], waited[made], part < 0, self._mark, self._copy)

    def of(self, step: PlacedStep, cuts: Cuts) -> Iterator[Bundle]:
        made, turn = self._graph.tensor_producer, step.turns
        device = np.ascontiguousarray(step.device, dtype=np.int64)
        found = labelled_bundles(self._tables, self.labels(cuts), device)
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for tensor, to, bundle in zip(*(one.tolist() for one in found[:3]), strict=True):
            if bundle >= 0:
                alike[bundle, to].append(tensor)
        for (_, to), tensors in alike.items():
            in_turn = sorted(tensors, key=lambda e: int(turn[made[e]]))
            yield Bundle(int(device[made[tensors[0]]]), (to,), tuple(in_turn))


def _numbers(known: BoolArray, *columns: IntArray | FloatArray) -> IntArray:
    """int64[n]: the same for rows with the same values in all columns, -1 where not known."""
    found = np.zeros(len(known), dtype=np.int64)
    for column in columns:
        _, number = np.unique(column, return_inverse=True)
        found = found * (int(number.max(initial=0)) + 1) + number
    _, dense = np.unique(found, return_inverse=True)
    numbers: IntArray = np.where(known, dense, -1)
    return numbers


def layered_bundles(problem: Problem) -> LayeredBundles | None:
    """None where the step has no micro-batches, or its graph does not say what its layers are.
    Made once for each problem."""
    if _KEPT not in problem.__dict__:
        problem.__dict__[_KEPT] = _made(problem)
    found: LayeredBundles | None = problem.__dict__[_KEPT]
    return found


def searched_bundles(problem: Problem) -> LayeredBundles | None:
    """Those that a search counts itself, None where it counts none."""
    return layered_bundles(problem) if problem.shares_messages else None


def with_shared_messages(problem: Problem) -> Problem | None:
    """The problem where a search counts bundles. None where there are none, where messages cost
    nothing, where rates are decided, which a search does for single tensors, and where messages
    queue on channels of fixed rates."""
    if problem.message_seconds == 0.0 or problem.decides_rates:
        return None
    if problem.model == "thesis" or problem.discipline == FIRST_COME:
        return None
    if layered_bundles(problem) is None:
        return None
    made = replace(problem, shares_messages=True)
    # What was made for the one holds for the other.
    made.__dict__.update({**problem.__dict__, "shares_messages": True})
    return made


def _made(problem: Problem) -> LayeredBundles | None:
    graph, work = problem.graph, units.mean_seconds(problem)
    if graph.micro_batch.max(initial=-1) < 1:
        return None
    layer = layers_of(graph, units.unit_of_operator(problem), work)
    return None if layer is None else LayeredBundles(problem, layer, work)


def _parts_before(layer: FloatArray, share: FloatArray) -> FloatArray:
    """float64[n]: the part of all shares up to the middle of each operator's layer."""
    level, at = np.unique(layer, return_inverse=True)
    of_level = np.bincount(at, share, len(level))
    middle = (np.cumsum(of_level) - of_level / 2) / max(float(of_level.sum()), 1e-300)
    parts: FloatArray = middle[at]
    return parts
