"""The type Reduction, which makes a graph smaller before the search, and the registry of all.

A reduction is `reduce(problem) -> (problem, undo)`; undo turns a decision for the small problem
into one for the large. Every reduction restricts the search (even contracting a chain forbids to
split it), so none may enter a bound or a certificate. All of them respect memory, devices of unlike
types and co-location keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewire.optimizer.registry import Refusal, Registry

if TYPE_CHECKING:
    from placewire.optimizer.problem import Problem
    from placewire.optimizer.reductions.contract import Reduced


def takes_all(problem: Problem) -> Refusal | None:
    return None


@dataclass(frozen=True)
class Reduction:
    """summary, paper, section: for people; paper is "" for our own reductions. accepts: returns why
    the reduction does not take a problem, or None where it does."""

    summary: str
    reduce: Callable[[Problem], Reduced]
    paper: str = ""
    section: str = ""
    accepts: Callable[[Problem], Refusal | None] = takes_all


REDUCTIONS = Registry("placewire.reductions", "reduction", Reduction)
