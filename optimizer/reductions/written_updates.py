"""Finds the updates that a decomposed step has written out, and makes one operator of each.

One weight's update is some 35 operators, most of which take no longer than their launch. What they
make no other operator reads, so that one operator of them closes no cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.graph.halves import updates
from placewire.optimizer.graph.operator_graph import BUFFER, UPDATE, OperatorGraph
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.chain import apply_chain
from placewire.optimizer.reductions.contract import Reduced, contracted, undo_groups
from placewire.optimizer.reductions.merging import binding_keys, units_of


@dataclass(frozen=True)
class MergedUpdates:
    """graph: each update that was written out is one operator of type `update`, at the place of its
    first operator. group int64[n]: which operator of it each operator became. unit int64[n]: those
    with the same number share a device, as an update does with what its co-location keys hold."""

    graph: OperatorGraph
    group: IntArray
    unit: IntArray


def written_updates(graph: OperatorGraph) -> IntArray:
    """int64[n]: a number for each update that is written out as several operators, the same for all
    of these and for the optimizer's state, which they alone read; -1 outside."""
    from placewire.optimizer.kernels.graphs.heads import joined_units

    n = graph.operator_count
    source, target, _ = graph.edges
    inside = updates(graph)
    left = np.zeros(n, dtype=np.bool_)
    left[source[~inside[target]]] = True
    inside |= _buffers(graph) & ~left
    between = inside[source] & inside[target]
    joined = joined_units(np.arange(n), source[between], target[between], n)
    several = inside & (np.bincount(joined[inside], minlength=n)[joined] > 1)
    # One with a reader outside might have to wait for itself.
    read = np.zeros(n, dtype=np.bool_)
    read[joined[several & left]] = True
    several &= ~read[joined]
    number = np.full(n, -1, dtype=np.int64)
    number[several] = np.unique(joined[several], return_inverse=True)[1]
    return number


def merged_updates(graph: OperatorGraph) -> MergedUpdates | None:
    """None where no update is written out."""
    from placewire.optimizer.kernels.graphs.heads import joined_units

    number = written_updates(graph)
    written = np.flatnonzero(number >= 0)
    if not len(written):
        return None
    n = graph.operator_count
    # The state stands at the begin of the graph, where no update can run.
    runs = written[~_buffers(graph)[written]]
    first = np.full(int(number.max()) + 1, n, dtype=np.int64)
    np.minimum.at(first, number[runs], runs)
    place = np.arange(n)
    place[written] = first[number[written]]
    unit = units_of(binding_keys(graph.colocation))
    unit = joined_units(unit, written, place[written], int(unit.max()) + 1)
    small, group = contracted(graph, place, unit)
    types = np.array(small.types, dtype=object)
    types[group[first]] = UPDATE
    return MergedUpdates(replace(small, types=tuple(types.tolist())), group, unit)


def merge_updates(problem: Problem) -> Reduced:
    """The problem itself where no update is written out."""
    merged = merged_updates(problem.graph)
    if merged is None:
        return apply_chain(problem, ())
    small = replace(problem, graph=merged.graph)
    return small, undo_groups(problem.graph, merged.group)


def _buffers(graph: OperatorGraph) -> BoolArray:
    return np.array([kind == BUFFER for kind in graph.types], dtype=np.bool_)
