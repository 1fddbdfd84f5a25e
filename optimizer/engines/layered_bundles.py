"""Bundles along the model: what two devices exchange for a range of layers travels at once.

A step in micro-batches sends every weight to all devices that read it, and every gradient back, in
the order of the layers. So weights of neighbouring layers can share a message, as units do in FSDP,
and gradients, as buckets do in DistributedDataParallel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from placewire.optimizer.engines import units
from placewire.optimizer.engines.layers import layers_of, ranges_of, work_and_weights
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.bundles import Bundle, PlacedStep
from placewire.optimizer.simulation.timeline import Timeline, TimelineMessage

# Source, destination, whether it is a weight, micro-batch, range of layers.
_Alike = tuple[int, int, bool, int, int]


class LayeredBundles:
    """timeline: has the messages of the placed step. There are no bundles where the step has no
    micro-batches, or where the graph does not say what its layers are."""

    def __init__(self, problem: Problem, step: PlacedStep, timeline: Timeline) -> None:
        graph = self._graph = problem.graph
        self._timeline, self._device = timeline, step.device
        work, self._layer = units.mean_seconds(problem), None
        self._share = work_and_weights(graph, work)
        if graph.micro_batch.max(initial=-1) > 0:
            self._layer = layers_of(graph, units.unit_of_operator(problem), work)
        self._turn = step.turns

    def of(self, count: int) -> Iterator[Bundle]:
        """With the layers in so many ranges of equal work and weights."""
        if self._layer is None:
            return
        graph = self._graph
        at = ranges_of(graph, self._layer, self._share, count)
        alike: dict[_Alike, dict[int, int]] = defaultdict(dict)
        for message in self._timeline.messages:
            made = int(graph.tensor_producer[message.tensor])
            is_weight = not len(graph.input_tensors(made))
            if is_weight or self._is_gradient(message):
                part = int(graph.micro_batch[made])
                ends = message.source, message.destination
                # An operator gives a bundle one tensor: a file says which one was made last.
                alike[*ends, is_weight, part, int(at[made])].setdefault(made, message.tensor)
        for (source, destination, *_), tensors in alike.items():
            if len(tensors) > 1:
                in_turn = sorted(tensors, key=lambda i: int(self._turn[i]))
                yield Bundle(source, (destination,), tuple(tensors[i] for i in in_turn))

    def _is_gradient(self, message: TimelineMessage) -> bool:
        """Whether what reads it there serves all micro-batches. An activation is waited for."""
        readers = self._graph.tensor_consumers(message.tensor)
        there = readers[self._device[readers] == message.destination]
        return bool((self._graph.micro_batch[there] < 0).all())
