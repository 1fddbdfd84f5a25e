"""Applies reductions one after the other, or one by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, Undo
from placewire.optimizer.reductions.merging import group_count, units_of
from placewire.optimizer.reductions.reduction import REDUCTIONS
from placewire.optimizer.reductions.refusals import ReductionRefusedError


def apply_chain(problem: Problem, reductions: Sequence[Callable[[Problem], Reduced]]) -> Reduced:
    """Applies each reduction to the result of the one before; undo goes back through all of
    them."""
    undos: list[Undo] = []
    for reduce in reductions:
        problem, undo = reduce(problem)
        undos.append(undo)

    def undo_all(device: IntArray, priority: FloatArray) -> tuple[IntArray, FloatArray]:
        for undo in reversed(undos):
            device, priority = undo(device, priority)
        return device, priority

    return problem, undo_all


def reduce_by_name(problem: Problem, name: str) -> tuple[Problem, Undo, str]:
    """Returns the reduced problem, its undo, and what was done in words ("none" for nothing).

    Groups of operators that a reduction ties but does not fuse are co-location keys of the reduced
    graph. Raises UnknownMethodError, and ReductionRefusedError where the reduction does not take
    the problem.
    """
    reduction = REDUCTIONS.load(name)
    if (refusal := reduction.accepts(problem)) is not None:
        raise ReductionRefusedError(refusal.what)
    reduced, undo = reduction.reduce(problem)
    return reduced, undo, in_words(problem, reduced, name)


def in_words(problem: Problem, reduced: Problem, name: str) -> str:
    """What the reduction of that name did; "none" for nothing."""
    before, after = problem.graph.operator_count, reduced.graph.operator_count
    if unchanged(problem, reduced):
        return "none"
    groups = group_count(reduced.graph)
    return f"{name}: {before} -> {after} operators, {groups} groups"


def unchanged(problem: Problem, reduced: Problem) -> bool:
    """Whether the reduction neither fused nor tied any operators.

    A reduction never unties operators, so as many units (co-location groups, and operators outside
    any) as before are the same units.
    """

    def sizes(one: Problem) -> tuple[int, int]:
        return one.graph.operator_count, int(units_of(one.graph.colocation).max(initial=-1))

    return sizes(problem) == sizes(reduced)
