"""What a state costs, compiled: the step with a charge for what a device's memory lacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.kernels.annealing.cost import Scoring, cost
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.problem import Problem


@dataclass(frozen=True)
class Found:
    """A state with what it costs: seconds, the charge for memory included. rates are those that it
    was found under, None where they follow the traffic or are no decision."""

    device: IntArray
    priority: FloatArray
    rates: FloatArray | None
    cost: float
    excess: float

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better: feasible before fast."""
        return (self.excess, self.cost)

    @property
    def solution(self) -> Solution:
        return Solution(self.device, self.priority, self.rates)


class Costing:
    """reference: seconds that no sensible step exceeds; check_memory: whether memory may bind."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tables = tables_of(problem)
        finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
        self.reference = max(float(finite.max(axis=1, initial=0.0).sum()), 1e-9)
        self.check_memory = memory_may_bind(problem)

    def cost(self, solution: Solution, rates: FloatArray | None = None) -> Found:
        """One state, under rates float64[S, S, R], or by the rule where they are decided."""
        priority = np.ascontiguousarray(solution.priority, dtype=np.float64)
        device = np.ascontiguousarray(solution.device, dtype=np.int64)
        seconds, excess = cost(self.tables, self.scoring(rates), device, priority)
        return Found(device, priority, solution.rates, seconds, excess)

    def scoring(self, rates: FloatArray | None) -> Scoring:
        """rates float64[S, S, R] held for every state; None: by the rule where they are decided."""
        decided = self.problem.decides_rates
        if rates is None:
            servers, rails = self.tables.nic_rates.shape
            rates = np.zeros((servers, servers, rails))
            if not decided:
                rates = np.ascontiguousarray(self.problem.rates_in_force(None))
            return Scoring(decided, self.check_memory, self.reference, rates)
        return Scoring(False, self.check_memory, self.reference, rates)


def memory_may_bind(problem: Problem) -> bool:
    """False where everything, buffers included, fits onto the smallest device at once."""
    graph = problem.graph
    readers = np.diff(graph.consumers_start)
    most = graph.weight_bytes.sum() + graph.activation_bytes.sum()
    most += graph.workspace_bytes.sum() + (graph.tensor_bytes * (readers > 0)).sum()
    return bool(most > problem.cluster.memory_bytes.min())
