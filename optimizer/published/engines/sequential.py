"""Engine `sequential`: fills one device after the other, in an order that runs along the model.

This is the placement of Celeritas' Standard Evaluation (section 4.2). It only has to fit, on as few
devices as possible, so that a model larger than one device can be measured at all. The order is
Celeritas' DFS-TOPO (4.2.2): the operator that became ready last comes next, so that neighbours stay
together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import unit_able, unit_of_operator, unit_sums
from placewire.optimizer.kernels.graphs.construct import cut
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.reductions.topological import dfs_topo
from placewire.optimizer.rates.allocator import starting_rates
from placewire.optimizer.simulation.simulate import simulate

_FILLS = 24


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where the devices are full before everything is placed."""
    priority = np.empty(problem.graph.operator_count)
    order = dfs_topo(problem.graph)
    priority[order] = np.arange(len(order), 0, -1, dtype=np.float64)
    for device in _fills(problem, order):
        rates = starting_rates(problem, device) if problem.decides_rates else None
        peak = simulate(problem, device, priority, None, rates).peak_memory_bytes
        if (peak <= problem.cluster.memory_bytes).all():
            return Solution(device, priority, rates)
    raise InfeasibleError(
        "all devices are full before everything is placed, one device filled after the other; add "
        "memory or devices, or use engine auto"
    )


def _fills(problem: Problem, order: IntArray) -> Iterator[IntArray]:
    """Placements int64[n] on ever more devices. Each fills a fraction of every memory with what
    stays there, and leaves the rest of the memory for what comes and goes."""
    graph = problem.graph
    unit = unit_of_operator(problem)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    first = np.full(int(unit.max(initial=-1)) + 1, len(order), dtype=np.int64)
    np.minimum.at(first, unit, position)
    in_turn = np.argsort(first, kind="stable").astype(np.int64)
    able = unit_able(problem, unit)
    room = problem.cluster.memory_bytes.astype(np.float64)
    for size in (graph.weight_bytes, graph.weight_bytes + graph.activation_bytes):
        for k in range(_FILLS, 0, -1):
            where = cut(in_turn, unit_sums(unit, size), able, room * (k / _FILLS))
            if len(where) and where[0] >= 0:
                yield where[unit]


ENGINE = Engine(
    "one device filled after the other, depth first", solve, paper="Xu et al., Celeritas (2022)",
    section="4.2", decides="devices, order", sees="nothing", memory="the simulated peak",
    unlike="yes", reduction="none",
)  # fmt: skip
