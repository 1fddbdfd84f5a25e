"""Cuts a step into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.engines.layers import layers_of, ranges_of
from placewire.optimizer.peers.step_parts import StepParts
from placewire.optimizer.problem import Problem

# By what part of a stage's work its end may be off, to lie where the fewest bytes cross.
_OFF_EQUAL = (0.0, 0.1, 0.3)
# On graphs of so many operators only this is tried, with equal work, as each takes a simulation.
_FEW_FROM, _FEW_OFF_EQUAL = 20_000, (0.1,)


class Stages:
    """Raises ValueError where the step's micro-batches are no copies of each other."""

    def __init__(self, problem: Problem, parts: StepParts) -> None:
        self._graph = problem.graph
        work = units.mean_seconds(problem)
        layer = layers_of(self._graph, units.unit_of_operator(problem), work, ties=False)
        if layer is None:
            raise ValueError("its micro-batches are not cut alike")
        self._layer = layer
        forward = parts.forward & (self._graph.micro_batch >= 0)
        many = self._graph.operator_count >= _FEW_FROM
        self._shares = (work,) if many else (work, np.where(forward, work, 0.0))
        self._off_equal = _FEW_OFF_EQUAL if many else _OFF_EQUAL

    def of(self, count: int) -> Iterator[IntArray]:
        """int64[n]: the stage of each operator, in several ways: so that all of a stage's work is
        equal, or that of its forward half. The backward half of a layer is where its forward half
        is, with its weights and their updates."""
        seen = set[bytes]()
        for share in self._shares:
            for off_equal in self._off_equal:
                stage = ranges_of(self._graph, self._layer, share, count, off_equal)
                if stage.tobytes() not in seen:
                    seen.add(stage.tobytes())
                    yield stage
