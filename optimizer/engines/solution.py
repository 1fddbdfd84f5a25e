"""The solution and the progress reports of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray

# Steps that differ by less than this part are ties: the model is not that exact.
TIE = 0.01
# How far an end of a range of layers moves.
_STEP = 0.03
# The part of moves that changes how layers travel.
_LAYERS_PART = 0.05


@dataclass(frozen=True)
class Cuts:
    """Where ranges of layers end whose weights, and whose gradients, travel together: parts of the
    step's work and weights, between 0 and 1, ascending. layers: whether what else a micro-batch
    sends of one layer travels together."""

    weights: tuple[float, ...]
    gradients: tuple[float, ...]
    layers: bool = True

    @classmethod
    def equal(cls, count: int) -> Cuts:
        """So many ranges."""
        ends = tuple(k / count for k in range(1, count))
        return cls(ends, ends)

    def moved(self, chance: np.random.Generator) -> Cuts:
        """One end moves, vanishes, or is new; or layers travel otherwise."""
        if chance.random() < _LAYERS_PART:
            return replace(self, layers=not self.layers)
        both = [list(self.weights), list(self.gradients)]
        ends = both[int(chance.integers(2))]
        kind, new = int(chance.integers(4)), float(chance.random())
        if ends and kind > 0:
            at = int(chance.integers(len(ends)))
            near = ends.pop(at) + float(chance.normal(0.0, _STEP))
            new = min(max(near, 0.0), 1.0)
        if kind != 1:
            ends.append(new)
        weights, gradients = (tuple(sorted(one)) for one in both)
        return Cuts(weights, gradients, self.layers)


# Those of a solution that has none.
USUAL_CUTS = Cuts.equal(4)


@dataclass(frozen=True)
class Solution:
    """device int64[n]; priority float64[n]: on a device the largest runs first; rates
    float64[S, S, R]: None where they are not decided, or follow the traffic; cuts: None where the
    search chose none."""

    device: IntArray
    priority: FloatArray
    rates: FloatArray | None
    cuts: Cuts | None = None


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
