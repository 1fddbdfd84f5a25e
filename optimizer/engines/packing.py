"""Starts for models that no single device can hold: cuts of an order that runs through the model.

Two orders are tried: the recorded sort, and the sort folded at its middle. Folding puts the
backward half of a layer beside its forward half, so that activations between them are not sent.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.engines.units import unit_able, unit_of_operator, unit_sums
from placewire.optimizer.kernels.graphs.construct import cut, longest_heads, longest_tails
from placewire.optimizer.problem import Problem

_FILLS = 24


def packed(problem: Problem) -> list[IntArray]:
    """Up to eight device arrays int64[n], whose simulated peaks may still exceed a memory."""
    graph = problem.graph
    if not graph.operator_count:
        return []
    unit = unit_of_operator(problem)
    able = unit_able(problem, unit)
    activations = graph.weight_bytes + graph.activation_bytes
    found = []
    for key in (graph.position, _folded(problem)):
        first = np.full(len(able), np.inf)
        np.minimum.at(first, unit, key)
        order = np.argsort(first, kind="stable").astype(np.int64)
        for size in (activations, graph.weight_bytes):
            for fill in _tightest_and_full(problem, order, unit_sums(unit, size), able):
                found.append(fill[unit])
    return found


def _folded(problem: Problem) -> FloatArray:
    """min(operators before, operators after) on the longest paths through each operator."""
    graph = problem.graph
    ones, nothing = np.ones(graph.operator_count), np.zeros(graph.tensor_count)
    before = longest_heads(
        graph.topological_order, *graph.inputs, graph.tensor_producer, ones, nothing
    )
    after = longest_tails(
        graph.topological_order, *graph.outputs, graph.consumers_start, graph.consumers, ones,
        nothing,
    )  # fmt: skip
    return np.minimum(before, after - 1.0)


def _tightest_and_full(
    problem: Problem, order: IntArray, sizes: FloatArray, able: BoolArray
) -> list[IntArray]:
    """The cuts that fill each device least, and most, of those within the memories."""
    fits = []
    for k in range(1, _FILLS + 1):
        where = cut(order, sizes, able, problem.cluster.memory_bytes.astype(float) * (k / _FILLS))
        if where[0] >= 0:
            fits.append(where)
    return [fits[0], fits[-1]] if len(fits) > 1 else fits
