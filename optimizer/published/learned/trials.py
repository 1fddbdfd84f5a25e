"""The placements that a training tries, with their costs: keeps the best, and tells when to end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.engines.shared.deadline import Deadline
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.learned.nodes import Nodes
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path

# The best step, or an episode's mean, has gained where it fell by more than this share.
_GAIN = 1e-3


@dataclass(frozen=True)
class Episode:
    """One row of the training curve. Steps are simulated seconds, with the charge for memory.
    placements: tried so far; groups: the mean number of decisions per placement; loss: nan where
    the policy was not updated."""

    number: int
    placements: int
    wall_seconds: float
    mean_step_seconds: float
    best_step_seconds: float
    best_so_far_seconds: float
    groups: float
    loss: float


class Trials:
    """most: how many placements training may try, None for as many as its episodes have. count: how
    many were tried; trained: how many of these in training."""

    def __init__(self, problem: Problem, nodes: Nodes, most: int | None, until: Deadline) -> None:
        self.nodes, self.until = nodes, until
        self.search = Reassignment(problem, by_remaining_path)
        self.most = math.inf if most is None else most
        self.count = self.trained = 0
        self.best: Found | None = None
        self.curve: list[Episode] = []
        self._began = time.monotonic()
        self._costs: list[float] = []
        self._groups: list[int] = []
        self._gained, self._lowest_mean = 0, math.inf

    @property
    def is_over(self) -> bool:
        """Training may try no more placements, or the time is over."""
        return self.trained >= self.most or self.until.is_over

    def cost(self, device: IntArray, groups: int, *, in_training: bool = True) -> float:
        """Returns the seconds of the placement with nodes on device int64[N], inf where a tensor is
        never delivered. groups: how many decisions made the placement."""
        found = self.search.cost(device[self.nodes.of_operator])
        if self.best is None or found.key < self.best.key:
            self.best = found
        self.count += 1
        if in_training:
            self.trained += 1
            self._costs.append(found.cost)
            self._groups.append(groups)
        return found.cost

    def close_episode(self, loss: float) -> Episode:
        """Adds to the curve what was tried in training since the last episode."""
        assert self.best is not None and self._costs
        finite = [cost for cost in self._costs if math.isfinite(cost)]
        before = self.curve[-1].best_so_far_seconds if self.curve else math.inf
        row = Episode(
            number=len(self.curve) + 1,
            placements=self.trained,
            wall_seconds=time.monotonic() - self._began,
            mean_step_seconds=float(np.mean(finite)) if finite else math.inf,
            best_step_seconds=min(self._costs),
            best_so_far_seconds=self.best.cost,
            groups=float(np.mean(self._groups)),
            loss=loss,
        )
        self.curve.append(row)
        self._costs, self._groups = [], []
        if row.best_so_far_seconds < before * (1 - _GAIN):
            self._gained = row.number
        if row.mean_step_seconds < self._lowest_mean * (1 - _GAIN):
            self._lowest_mean, self._gained = row.mean_step_seconds, row.number
        return row

    def stale_for(self, episodes: int) -> bool:
        """Neither the best step nor the lowest mean of an episode fell in so many episodes."""
        return len(self.curve) - self._gained >= episodes
