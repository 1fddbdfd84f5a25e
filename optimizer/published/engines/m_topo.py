"""Engine `m-topo`: memory-constrained topological sort.

Jeon, Cai, Srivastava, Jiang, Ke, Meng, Xie, Gupta: "Baechi: fast device placement of machine
learning graphs" (SoCC 2020), m-TOPO: in a topological order, one device after the other is
filled up to a cap, which is an even part of all memory that is needed and the largest single need
on top. The order is breadth first, as Celeritas (section 4.2.2) describes it; where no device has
memory left, the roomiest takes what comes (Celeritas, section 6.3).
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.engines.device_capacity import DeviceCapacities, within_memory
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.filling import fill
from placewire.optimizer.published.reductions.topological import m_topo


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group can run on no device."""
    order = m_topo(problem.graph)
    priority = np.empty(len(order))
    priority[order] = -np.arange(len(order))

    def attempt(capacities: DeviceCapacities) -> Solution:
        caps = [memory_cap(capacities)] * len(capacities.left_bytes)
        return Solution(fill(capacities, order, caps), priority, None)

    return within_memory(problem, "m-topo", attempt)


def memory_cap(capacities: DeviceCapacities) -> float:
    """Bytes per device. Co-location groups are placed whole: the largest need is a group's."""
    return sum(capacities.needed) / len(capacities.left_bytes) + max(capacities.needed, default=0.0)


ENGINE = Engine(
    "filled evenly, breadth first",
    solve,
    paper="Jeon et al., Baechi (SoCC 2020)",
    section="m-TOPO",
    decides="devices, order",
    sees="nothing",
    memory="static sum; best effort where all are full",
    unlike="yes",
    reduction="none",
)
