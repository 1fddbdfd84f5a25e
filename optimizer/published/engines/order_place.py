"""Engine `order-place`: Celeritas' Order-Place.

Xu, Xie, Liao, Zhou: "Celeritas: fast optimizer for large dataflow graphs" (2022),
sections 5.2 and 6.2.2: operators in the order of CPD-TOPO, on one device until its memory is full,
then on the next; where all are full, the one with the lowest usage takes what comes (6.3). The
paper runs it on its fused graph.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.engines.device_capacity import DeviceCapacities, within_memory
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.filling import fill
from placewire.optimizer.published.reductions.topological import cpd_topo


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group can run on no device."""
    order = cpd_topo(problem)
    priority = np.empty(len(order))
    priority[order] = -np.arange(len(order))

    def attempt(capacities: DeviceCapacities) -> Solution:
        return Solution(fill(capacities, order, capacities.left_bytes), priority, None)

    return within_memory(problem, "order-place", attempt)


ENGINE = Engine(
    "Order-Place: filled along critical paths",
    solve,
    paper="Xu et al., Celeritas (2022)",
    section="5.2",
    decides="devices, order",
    sees="nothing",
    memory="static sum; best effort where all are full",
    unlike="yes",
)
