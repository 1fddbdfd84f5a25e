"""A layout: where the pieces of a step run, in which order, and what of them travels together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import IntArray

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


class Urgency(NamedTuple):
    """Which operators run before those with a longer path to the step's end. By that path alone a
    gradient is made and sent when nothing else is left to compute, and the network has too little
    time for all of them. at_once: those that take no time, as views, run as soon as they can.
    gradients: what makes a weight's gradient comes before the rest of the backward half. shared:
    what works for several micro-batches, as updates, comes after what works for one. common: what
    is made once for all micro-batches, as masks, comes first; it then takes memory for longer."""

    at_once: bool = False
    gradients: bool = False
    shared_late: bool = False
    common: bool = True


BY_PATH = Urgency()


@dataclass(frozen=True)
class Layout:
    """home int64[pieces, micro-batches]: devices. turn int64[micro-batches]: which one comes first
    on its devices. lateness: by what part of the longest path a later turn makes less urgent. cuts:
    as in Solution."""

    home: IntArray
    turn: IntArray
    lateness: float
    cuts: Cuts | None = None
    urgency: Urgency = BY_PATH
