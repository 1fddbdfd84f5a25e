"""The answer of a solver to a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from placewire.optimizer.arrays import FloatArray


@dataclass(frozen=True)
class Answer:
    """values: float64[columns] of the incumbent, None without one; objective and bound in the
    program's units; infeasible: whether this is proven; words: the solver's own status; rounds: how
    many programs were solved."""

    values: FloatArray | None
    objective: float
    bound: float
    infeasible: bool
    words: str
    rounds: int = 1


# Hears the best answer so far after every round.
Heard = Callable[[Answer], None]
NO_ANSWER = Answer(None, math.inf, -math.inf, infeasible=False, words="", rounds=0)


def no_bound_above(objective: float, bound: float, rounding: float, name: str) -> float:
    """The bound, which rounding may have lifted above this objective: then the objective.

    Raises AssertionError where it is further above: then the bound or the objective is wrong, and
    the answer must not be called optimal."""
    if bound > objective + rounding:
        raise AssertionError(f"{name}: the solver's bound {bound} is above a step of {objective}")
    return min(bound, objective)
