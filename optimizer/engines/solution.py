"""The solution and the progress reports of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placewire.optimizer.arrays import FloatArray, IntArray

# Steps that differ by less than this part are ties: the model is not that exact.
TIE = 0.01


@dataclass(frozen=True)
class Solution:
    """device int64[n]; priority float64[n]: on a device the largest runs first; rates
    float64[S, S, R]: None where they are not decided, or follow the traffic."""

    device: IntArray
    priority: FloatArray
    rates: FloatArray | None


@dataclass(frozen=True)
class Progress:
    """seconds: since the search began. incumbent_seconds, bound_seconds: by the engine's own model;
    the incumbent is inf while nothing feasible is known. words: the solver's last message."""

    seconds: float
    incumbent_seconds: float
    bound_seconds: float
    moves: int
    words: str = ""


Report = Callable[[Progress], None]
