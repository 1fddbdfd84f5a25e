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
from placewire.optimizer.reductions.merging import (
    binding_keys,
    most_unit_bytes,
    operator_bytes,
    operator_delay,
    units_of,
)

_KEPT = "_merged_updates"
# An update that takes more than this part of all work is heavy.
_HEAVY = 0.01


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
    number = np.full(n, -1, dtype=np.int64)
    if not graph.notes.get("decompose"):
        return number
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
    number[several] = np.unique(joined[several], return_inverse=True)[1]
    return number


def merged_updates(graph: OperatorGraph, most_bytes: int | None = None) -> MergedUpdates | None:
    """None where no update is written out that can be merged. An update stays written out where
    what would share its device comes to more than most_bytes. The result is kept with the graph."""
    if not graph.notes.get("decompose"):
        return None
    kept: dict[int | None, MergedUpdates | None] = graph.__dict__.setdefault(_KEPT, {})
    if most_bytes not in kept:
        kept[most_bytes] = _merged_within(graph, most_bytes)
    return kept[most_bytes]


def merge_updates(problem: Problem) -> Reduced:
    """The problem itself where no update is merged; no unit of a merged one is more than
    most_unit_bytes()."""
    merged = merged_updates(problem.graph, most_unit_bytes(problem))
    if merged is None:
        return apply_chain(problem, ())
    small = replace(problem, graph=merged.graph)
    return small, undo_groups(problem.graph, merged.group)


def merge_light_updates(problem: Problem) -> Reduced:
    """As merge_updates, but an update that takes a good part of the step stays written out: parts
    of it may be worth a device each."""
    graph = problem.graph
    number = written_updates(graph)
    inside = number >= 0
    seconds = operator_delay(problem)
    took = np.bincount(number[inside], seconds[inside], int(number.max(initial=-1)) + 1)
    whole = merged_updates(graph, most_unit_bytes(problem))
    if whole is None:
        return apply_chain(problem, ())
    heavy = inside & (took > _HEAVY * seconds.sum())[number]
    # What merge_updates leaves written out stays so.
    small = _merged(graph, np.where(heavy | _alone(whole.group), -1, number))
    if small is None:
        return apply_chain(problem, ())
    return replace(problem, graph=small.graph), undo_groups(graph, small.group)


def _alone(group: IntArray) -> BoolArray:
    """bool[n]: the operators that became one with no other."""
    alone: BoolArray = np.bincount(group)[group] == 1
    return alone


def _merged_within(graph: OperatorGraph, most_bytes: int | None) -> MergedUpdates | None:
    if most_bytes is None:
        return _merged(graph, written_updates(graph))
    whole = merged_updates(graph)
    if whole is None:
        return None
    held = np.zeros(int(whole.unit.max()) + 1, dtype=np.int64)
    np.add.at(held, whole.unit, operator_bytes(graph))
    number = written_updates(graph)
    large = (number >= 0) & (held[whole.unit] > most_bytes)
    return _merged(graph, np.where(large, -1, number)) if large.any() else whole


def _merged(graph: OperatorGraph, number: IntArray) -> MergedUpdates | None:
    """number int64[n]: the same one, from 0, for the operators that become one; -1 outside."""
    from placewire.optimizer.kernels.graphs.heads import joined_units

    written = np.flatnonzero(number >= 0)
    if not len(written):
        return None
    n = graph.operator_count
    # The state stands at the begin of the graph, where no update can run.
    runs = written[~_buffers(graph)[written]]
    first_of = np.full(int(number.max()) + 1, n, dtype=np.int64)
    np.minimum.at(first_of, number[runs], runs)
    place = np.arange(n)
    place[written] = first_of[number[written]]
    unit = units_of(binding_keys(graph.colocation))
    unit = joined_units(unit, written, place[written], int(unit.max()) + 1)
    small, group = contracted(graph, place, unit)
    ids, types, modules = list(small.ids), list(small.types), list(small.modules)
    # Only by its own operators is it known whose update it is.
    for i in np.unique(place[written]).tolist():
        k = int(group[i])
        ids[k], types[k], modules[k] = graph.ids[i], UPDATE, graph.modules[i]
    named = replace(small, ids=tuple(ids), types=tuple(types), modules=tuple(modules))
    return MergedUpdates(named, group, unit)


def _buffers(graph: OperatorGraph) -> BoolArray:
    return np.array([kind == BUFFER for kind in graph.types], dtype=np.bool_)
