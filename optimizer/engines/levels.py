"""From one reduction of a graph to a milder one, by way of a decision for the graph as given."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.units import unit_of_operator
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.coarsen import reduce_to
from placewire.optimizer.reductions.contract import Reduced, Undo

# Each level has about so many times the operators of the one before.
_GROWTH = 5


def level_sizes(smallest: int, largest: int) -> list[int]:
    """Operators of the levels between two graphs, ascending; none where they are near."""
    sizes, size = [], smallest * _GROWTH
    while size * _GROWTH // 2 <= largest:
        sizes.append(size)
        size *= _GROWTH
    return sizes


def milder(problem: Problem, operators: int) -> Reduced | None:
    """The problem with about so many operators; None where that reduces next to nothing."""
    small, undo = reduce_to(problem, operators)
    if 2 * small.graph.operator_count > problem.graph.operator_count:
        return None
    return small, undo


def carried(problem: Problem, small: Problem, undo: Undo, solution: Solution) -> Solution:
    """A solution of `problem` as one of `small`, which undo takes back to it: each unit where most
    of its work is, with the priority of its most urgent operator."""
    count = small.graph.operator_count
    home, _ = undo(np.arange(count, dtype=np.int64), np.zeros(count))
    work = problem.seconds[np.arange(len(home)), solution.device]
    unit = unit_of_operator(small)
    held = np.zeros((int(unit.max(initial=-1)) + 1, len(problem.cluster.devices)))
    np.add.at(held, (unit[home], solution.device), work + 1e-12)
    able = np.isfinite(small.seconds)
    possible = np.ones_like(held, dtype=np.bool_)
    np.logical_and.at(possible, unit, able)
    best: IntArray = np.where(possible, held, -1.0).argmax(axis=1)
    priority = np.full(count, -np.inf)
    np.maximum.at(priority, home, solution.priority)
    return Solution(best[unit], priority, solution.rates)
