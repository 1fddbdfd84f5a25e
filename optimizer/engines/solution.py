"""What every engine takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.problem import Problem, SolveSettings

# Differences below this are ties (the model is not that exact).
TIE = 0.01


@dataclass(frozen=True)
class Solution:
    """device int64[n]; priority float64[n], the largest runs first; rates float64[S, S, R] where
    the sharing has some and the engine decides them, else None: they follow the traffic."""

    device: IntArray
    priority: FloatArray
    rates: FloatArray | None


@dataclass(frozen=True)
class Progress:
    """incumbent_seconds is inf while nothing feasible is known. Seconds are of the engine's own
    model; words: what its solver says of itself at the end."""

    seconds: float
    incumbent_seconds: float
    bound_seconds: float
    moves: int
    words: str = ""


Report = Callable[[Progress], None]
# Raises InfeasibleError where the engine finds no placement within the memories.
Solve = Callable[[Problem, SolveSettings, Report | None], Solution]
