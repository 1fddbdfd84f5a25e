"""Levels of a search between a reduced graph and the graph as given, and solutions carried over."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.units import unit_able, unit_of_operator
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.chain import apply_chain
from placewire.optimizer.reductions.coarsen import reduce_to
from placewire.optimizer.reductions.contract import Reduced, Undo
from placewire.optimizer.reductions.written_updates import merge_light_updates, merge_updates

# Each level has about this many times the operators of the level before.
_GROWTH = 5
# A level that has less than so many times the operators of another one is not worth a search.
_GREW = 1.1


def level_sizes(smallest: int, largest: int) -> list[int]:
    """How many operators each level between two graphs has, ascending; () where they are close."""
    sizes, size = [], smallest * _GROWTH
    while size * _GROWTH // 2 <= largest:
        sizes.append(size)
        size *= _GROWTH
    return sizes


def milder(problem: Problem, operators: int) -> Reduced | None:
    """The problem with about this many operators; None where that is hardly smaller."""
    reductions = merge_updates, partial(reduce_to, target_operators=operators)
    small, undo = apply_chain(problem, reductions)
    if 2 * small.graph.operator_count > problem.graph.operator_count:
        return None
    return small, undo


def with_heavy_updates(problem: Problem, operators: int) -> Reduced | None:
    """The problem with all updates merged but the heavy ones; None where that hardly differs from
    the one with all of them merged, which has so many operators, or was reduced further."""
    if merge_updates(problem)[0].graph.operator_count != operators:
        return None
    small, undo = merge_light_updates(problem)
    if not _GREW * operators <= small.graph.operator_count <= problem.graph.operator_count / _GREW:
        return None
    return small, undo


def undone(undo: Undo, solution: Solution) -> Solution:
    """A reduced problem's solution as one of the problem. Its layout is still of the reduced one's
    pieces."""
    device, priority = undo(solution.device, solution.priority)
    return replace(solution, device=device, priority=priority)


def carried(problem: Problem, small: Problem, undo: Undo, solution: Solution) -> Solution:
    """A solution of `problem` as one of `small`, whose undo leads back to `problem`: each unit is
    placed where most of its work is, with the priority of its most urgent operator."""
    count = small.graph.operator_count
    home, _ = undo(np.arange(count, dtype=np.int64), np.zeros(count))
    work = problem.seconds[np.arange(len(home)), solution.device]
    unit = unit_of_operator(small)
    held = np.zeros((int(unit.max(initial=-1)) + 1, len(problem.cluster.devices)))
    np.add.at(held, (unit[home], solution.device), work + 1e-12)
    best: IntArray = np.where(unit_able(small, unit), held, -1.0).argmax(axis=1)
    priority = np.full(count, -np.inf)
    np.maximum.at(priority, home, solution.priority)
    return Solution(best[unit], priority, solution.rates, solution.cuts)
