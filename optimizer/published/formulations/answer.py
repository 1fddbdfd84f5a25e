"""What a solver says of a program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placewire.optimizer.arrays import FloatArray


@dataclass(frozen=True)
class Answer:
    """values float64[columns] of the incumbent, None without one; bound on the objective, in the
    program's units; infeasible: proven; words: the solver's own status; rounds of programs."""

    values: FloatArray | None
    objective: float
    bound: float
    infeasible: bool
    words: str
    rounds: int = 1


NO_ANSWER = Answer(None, math.inf, -math.inf, infeasible=False, words="", rounds=0)
