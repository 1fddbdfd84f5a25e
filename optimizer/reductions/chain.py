"""Reductions in a row, and by name.

A reduction is `reduce(problem) -> (problem, undo)`; undo takes a decision for the small problem
back to the large one. Every reduction restricts the search, chains included (contracting a chain
forbids to split it), so none may enter a bound or a certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.names import ReductionName
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.catalog import REDUCTIONS, load
from placewire.optimizer.reductions.contract import Reduced, Undo
from placewire.optimizer.reductions.merging import group_count, units_of

Reduction = Callable[[Problem], Reduced]


def apply_chain(problem: Problem, reductions: Sequence[Reduction]) -> Reduced:
    """All of them, one on the other's result; undo runs them back in reverse."""
    undos: list[Undo] = []
    for reduce in reductions:
        problem, undo = reduce(problem)
        undos.append(undo)

    def undo_all(device: IntArray, priority: FloatArray) -> tuple[IntArray, FloatArray]:
        for undo in reversed(undos):
            device, priority = undo(device, priority)
        return device, priority

    return problem, undo_all


def reduce_by_name(problem: Problem, name: ReductionName) -> tuple[Problem, Undo, str]:
    """The reduced problem, its undo, and what was done in words ("none" where nothing was).

    names.py lists the names. Groups that a reduction ties and does not fuse are co-location
    keys of the reduced graph. Raises ValueError for another name, ReductionRefusedError where the
    graph lacks what the paper's scheme goes by.
    """
    if name not in REDUCTIONS:
        raise ValueError(f"unknown reduction {name!r}; accepted: {', '.join(REDUCTIONS)}")
    reduced, undo = apply_chain(problem, load(name))
    before, after = problem.graph.operator_count, reduced.graph.operator_count
    if unchanged(problem, reduced):
        return reduced, undo, "none"
    groups = group_count(reduced.graph)
    return reduced, undo, f"{name}: {before} -> {after} operators, {groups} groups"


def unchanged(problem: Problem, reduced: Problem) -> bool:
    """Whether nothing was fused, and nothing tied that was not tied before: what is tied only
    grows, so that as many co-location groups and operators outside any are the same ones."""

    def sizes(one: Problem) -> tuple[int, int]:
        return one.graph.operator_count, int(units_of(one.graph.colocation).max(initial=-1))

    return sizes(problem) == sizes(reduced)
