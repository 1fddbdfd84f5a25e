"""Bundles along the model: what two devices exchange for a range of layers travels at once.

A step in micro-batches sends every weight to all devices that read it, and every gradient back, in
the order of the layers. So weights of neighbouring layers can share a message, as units do in FSDP,
and gradients, as buckets do in DistributedDataParallel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.layers import layers_of, work_and_weights
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.bundles import Bundle, PlacedStep
from placewire.optimizer.simulation.timeline import Timeline, TimelineMessage

# How far an end moves.
_STEP = 0.03
# Source, destination, whether it is a weight, micro-batch, range of layers.
_Alike = tuple[int, int, bool, int, int]


@dataclass(frozen=True)
class Cuts:
    """Where ranges of layers end whose weights, and whose gradients, travel together: parts of the
    step's work and weights, between 0 and 1, ascending."""

    weights: tuple[float, ...]
    gradients: tuple[float, ...]

    @classmethod
    def equal(cls, count: int) -> Cuts:
        """So many ranges."""
        ends = tuple(k / count for k in range(1, count))
        return cls(ends, ends)

    def moved(self, chance: np.random.Generator) -> Cuts:
        """One end moves, vanishes, or is new."""
        both = [list(self.weights), list(self.gradients)]
        ends = both[int(chance.integers(2))]
        kind, new = int(chance.integers(4)), float(chance.random())
        if ends and kind > 0:
            at = int(chance.integers(len(ends)))
            near = ends.pop(at) + float(chance.normal(0.0, _STEP))
            new = min(max(near, 0.0), 1.0)
        if kind != 1:
            ends.append(new)
        return Cuts(*(tuple(sorted(one)) for one in both))


class LayeredBundles:
    """timeline: has the messages of the placed step. There are no bundles where the step has no
    micro-batches, or where the graph does not say what its layers are."""

    def __init__(self, problem: Problem, step: PlacedStep, timeline: Timeline) -> None:
        graph = self._graph = problem.graph
        self._device, self._turn = step.device, step.turns
        layer, work = None, units.mean_seconds(problem)
        if graph.micro_batch.max(initial=-1) > 0:
            layer = layers_of(graph, units.unit_of_operator(problem), work)
        self.known = layer is not None
        if layer is None:
            return
        self._at = _parts_before(layer, work_and_weights(graph, work))
        self._messages = list(self._of_layers(timeline))

    def _of_layers(self, timeline: Timeline) -> Iterator[tuple[TimelineMessage, bool, int]]:
        """(message, whether it is a weight, the operator that makes it)"""
        graph = self._graph
        for message in timeline.messages:
            made = int(graph.tensor_producer[message.tensor])
            is_weight = not len(graph.input_tensors(made))
            if is_weight or self._is_gradient(message, made):
                yield message, is_weight, made

    def of(self, cuts: Cuts) -> Iterator[Bundle]:
        if not self.known:
            return
        ends = {True: np.array(cuts.weights), False: np.array(cuts.gradients)}
        at = {kind: np.searchsorted(these, self._at).tolist() for kind, these in ends.items()}
        alike: dict[_Alike, dict[int, int]] = defaultdict(dict)
        for message, is_weight, made in self._messages:
            part = int(self._graph.micro_batch[made])
            key = message.source, message.destination, is_weight, part, at[is_weight][made]
            # An operator gives a bundle one tensor: a file says which one was made last.
            alike[key].setdefault(made, message.tensor)
        for (source, destination, *_), tensors in alike.items():
            if len(tensors) > 1:
                in_turn = sorted(tensors, key=lambda i: int(self._turn[i]))
                yield Bundle(source, (destination,), tuple(tensors[i] for i in in_turn))

    def _is_gradient(self, message: TimelineMessage, made: int) -> bool:
        """Whether a micro-batch makes it, and what reads it there serves all of them. An activation
        is waited for, and so is a sum that goes from device to device."""
        part = self._graph.micro_batch
        readers = self._graph.tensor_consumers(message.tensor)
        there = readers[self._device[readers] == message.destination]
        return bool(part[made] >= 0 and (part[there] < 0).all())


def _parts_before(layer: FloatArray, share: FloatArray) -> FloatArray:
    """float64[n]: the part of all shares up to the middle of each operator's layer."""
    level, at = np.unique(layer, return_inverse=True)
    of_level = np.bincount(at, share, len(level))
    middle = (np.cumsum(of_level) - of_level / 2) / max(float(of_level.sum()), 1e-300)
    parts: FloatArray = middle[at]
    return parts
