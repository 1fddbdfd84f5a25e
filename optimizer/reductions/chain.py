"""Reductions in a row, and the choice of them by size.

A reduction is `reduce(problem) -> (problem, undo)`; undo takes a decision for the small problem
back to the large one. Every reduction restricts the search, chains included (contracting a chain
forbids to split it), so none may enter a bound or a certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

import numpy as np

from optimizer.graph import FloatArray, IntArray
from optimizer.names import ReductionName
from optimizer.problem import Problem
from optimizer.reductions.colocation import merge_colocated
from optimizer.reductions.contract import Reduced, Undo
from optimizer.reductions.fusion import fuse, operator_delay

Reduction = Callable[[Problem], Reduced]

# Above this many operators `auto` reduces at all, and below this it stops raising alpha.
REDUCE_ABOVE = 100
REDUCE_TO = 500
# A reduction that leaves more than this part of the operators only costs a projection.
_WORTH_IT = 0.9
_ALPHA_QUANTILES = (0.25, 0.5, 0.7, 0.85, 0.95)


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
    """`none`, `fusion` (alpha 0: chains and operators without cost), or `auto`: none for a small
    graph, else co-location and fusion with the least alpha that brings it to REDUCE_TO operators.

    Returns also what was done, in words. Raises ValueError for another name.
    """
    if name not in get_args(ReductionName):
        accepted = ", ".join(get_args(ReductionName))
        raise ValueError(f"unknown reduction {name!r}; accepted: {accepted}")
    count = problem.graph.operator_count
    if name == "none" or (name == "auto" and count <= REDUCE_ABOVE):
        reduced, undo = apply_chain(problem, ())
        return reduced, undo, "none"
    delays = operator_delay(problem)
    alphas = [0.0]
    if name == "auto":
        alphas += [float(np.quantile(delays, q)) for q in _ALPHA_QUANTILES]
    for alpha in alphas:
        reduced, undo = apply_chain(problem, (merge_colocated, partial(fuse, alpha=alpha)))
        if reduced.graph.operator_count <= REDUCE_TO:
            break
    if name == "auto" and reduced.graph.operator_count > _WORTH_IT * count:
        reduced, undo = apply_chain(problem, ())
        return reduced, undo, "none"
    words = f"fusion, alpha {alpha * 1e6:.3g} us: {count} -> {reduced.graph.operator_count}"
    return reduced, undo, words
