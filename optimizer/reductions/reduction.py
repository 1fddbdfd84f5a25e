"""What makes a graph smaller before the search: a reduction, as it is registered and asked for.

A reduction is `reduce(problem) -> (problem, undo)`; undo takes a decision for the small problem
back to the large one. Every reduction restricts the search, chains included (contracting a chain
forbids to split it), so none may enter a bound or a certificate. All of them mind memory, devices
of unlike types and co-location keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced
from placewire.optimizer.registry import Refusal, Registry


def takes_all(problem: Problem) -> Refusal | None:
    return None


@dataclass(frozen=True)
class Reduction:
    """summary, paper, section: for people; paper is "" for our own. accepts: why it does not take a
    problem, None where it does."""

    summary: str
    reduce: Callable[[Problem], Reduced]
    paper: str = ""
    section: str = ""
    accepts: Callable[[Problem], Refusal | None] = takes_all


REDUCTIONS = Registry("placewire.reductions", "reduction", Reduction)
