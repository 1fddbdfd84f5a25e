"""Reductions in a row, and by name.

A reduction is `reduce(problem) -> (problem, undo)`; undo takes a decision for the small problem
back to the large one. Every reduction restricts the search, chains included (contracting a chain
forbids to split it), so none may enter a bound or a certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from optimizer.graph import FloatArray, IntArray
from optimizer.names import ReductionName
from optimizer.problem import Problem
from optimizer.reductions.coarsen import reduce_to
from optimizer.reductions.colocation import merge_colocated
from optimizer.reductions.contract import Reduced, Undo
from optimizer.reductions.fusion import fuse
from optimizer.reductions.iterate import reduce_as_icc, reduce_as_thesis
from optimizer.reductions.merging import group_count

Reduction = Callable[[Problem], Reduced]

# Above this many operators `auto` reduces at all, and it reduces to about this many.
REDUCE_ABOVE = 300
REDUCE_TO = 500
# A reduction that leaves more than this part of the operators only costs a projection.
_WORTH_IT = 0.9


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


def reduce_mildly(problem: Problem) -> Reduced:
    """By size: nothing for a small graph or where little would be gained, else chains and operators
    without cost, else as mildly as brings it to about REDUCE_TO operators."""
    count = problem.graph.operator_count
    if count <= REDUCE_ABOVE:
        return apply_chain(problem, ())
    reduced = fuse(problem)
    if reduced[0].graph.operator_count > REDUCE_TO:
        reduced = reduce_to(problem, REDUCE_TO)
    worth_it = reduced[0].graph.operator_count <= _WORTH_IT * count
    return reduced if worth_it else apply_chain(problem, ())


_REDUCTIONS: Mapping[ReductionName, Sequence[Reduction]] = {
    "auto": (reduce_mildly,),
    "none": (),
    "chain": (fuse,),
    "fusion": (merge_colocated, fuse),
    "thesis": (reduce_as_thesis,),
    "icc": (reduce_as_icc,),
}


def reduce_by_name(problem: Problem, name: ReductionName) -> tuple[Problem, Undo, str]:
    """The reduced problem, its undo, and what was done in words ("none" where nothing was).

    optimizer.names lists the names. Groups of `thesis` and `icc` that are not fused are co-location
    keys of the reduced graph. Raises ValueError for another name.
    """
    if name not in _REDUCTIONS:
        raise ValueError(f"unknown reduction {name!r}; accepted: {', '.join(_REDUCTIONS)}")
    reduced, undo = apply_chain(problem, _REDUCTIONS[name])
    before, after = problem.graph.operator_count, reduced.graph.operator_count
    groups = group_count(reduced.graph)
    if before == after and groups == group_count(problem.graph):
        return reduced, undo, "none"
    return reduced, undo, f"{name}: {before} -> {after} operators, {groups} groups"
