"""The solution and the progress reports of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.layout import Cuts, Layout

# Steps that differ by less than this part are ties: the model is not that exact.
TIE = 0.01


@dataclass(frozen=True)
class Solution:
    """device int64[n]; priority float64[n]: on a device the largest runs first; rates
    float64[S, S, R]: None where they are not decided, or follow the traffic; cuts: None where
    none were chosen. layout: that it was made of; None where it is of no layout."""

    device: IntArray
    priority: FloatArray
    rates: FloatArray | None
    cuts: Cuts | None = None
    layout: Layout | None = None


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
