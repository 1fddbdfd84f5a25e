"""The compiled cost of a state: its step, with a charge for memory that a device lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.layered_bundles import searched_bundles
from placewire.optimizer.engines.layout import USUAL_CUTS, Cuts, Layout
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.kernels.annealing.cost import Scoring, bundled_cost
from placewire.optimizer.kernels.simulation.labelled_bundles import NO_LABELS, Labels
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.problem import Problem


@dataclass(frozen=True)
class Found:
    """A state with its cost: seconds, the charge for memory included. rates: those that it was
    found under; None where they follow the traffic or are not decided. cuts, layout: as in
    Solution."""

    device: IntArray
    priority: FloatArray
    rates: FloatArray | None
    cost: float
    excess: float
    cuts: Cuts | None = None
    layout: Layout | None = None

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better: what ends before what never does, then feasible before fast."""
        return (self.excess if math.isfinite(self.cost) else math.inf, self.cost)

    @property
    def solution(self) -> Solution:
        return Solution(self.device, self.priority, self.rates, self.cuts, self.layout)


class Costing:
    """reference: seconds that no sensible step exceeds. check_memory: as `memory_may_bind` says.
    bundles: those that count in the step, None where each tensor is a message."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tables = tables_of(problem)
        finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
        self.reference = max(float(finite.max(axis=1, initial=0.0).sum()), 1e-9)
        self.check_memory = memory_may_bind(problem)
        self.bundles = searched_bundles(problem)

    def cost(self, solution: Solution, rates: FloatArray | None = None) -> Found:
        """The cost under rates float64[S, S, R]; None: decided rates are set by the rule."""
        priority = np.ascontiguousarray(solution.priority, dtype=np.float64)
        device = np.ascontiguousarray(solution.device, dtype=np.int64)
        seconds, excess = bundled_cost(
            self.tables, self.labels(solution.cuts), self.scoring(rates), device, priority
        )
        of_solution = solution.cuts, solution.layout
        return Found(device, priority, solution.rates, seconds, excess, *of_solution)

    def labels(self, cuts: Cuts | None) -> Labels:
        return NO_LABELS if self.bundles is None else self.bundles.labels(cuts or USUAL_CUTS)

    def scoring(self, rates: FloatArray | None) -> Scoring:
        """rates float64[S, S, R]: held for every state; None: decided rates are set by the rule."""
        by_rule = rates is None and self.problem.decides_rates
        if by_rule:
            servers, rails = self.tables.nic_rates.shape
            rates = np.zeros((servers, servers, rails))
        elif rates is None:
            given = self.problem.decided(None)
            rates = np.ascontiguousarray(
                self.problem.rates_in_force(None) if given is None else given
            )
        return Scoring(by_rule, self.check_memory, self.reference, rates)


def memory_may_bind(problem: Problem) -> bool:
    """False where everything at once, buffers included, fits onto the smallest device."""
    graph = problem.graph
    readers = np.diff(graph.consumers_start)
    most = graph.weight_bytes.sum() + graph.activation_bytes.sum()
    most += graph.workspace_bytes.sum() + (graph.tensor_bytes * (readers > 0)).sum()
    return bool(most > problem.cluster.memory_bytes.min())
