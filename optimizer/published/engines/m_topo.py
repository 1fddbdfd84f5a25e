"""Engine `m-topo`: memory-constrained topological sort.

Jeon, Cai, Srivastava, Jiang, Ke, Meng, Xie, Gupta: "Baechi: fast device placement of machine
learning graphs" (SoCC 2020), m-TOPO: one device after the other is filled, in a topological order,
up to a cap: an even share of all the memory that is needed, plus the largest single need. The order
is breadth first, as Celeritas (section 4.2.2) describes it. Where every device is full, an operator
goes to the device with the most memory left (Celeritas, section 6.3).
"""

from __future__ import annotations

from placewire.optimizer.engines.device_capacity import DeviceCapacities
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.filling import fill_in_order
from placewire.optimizer.published.engines.shared.kinds import filling_engine
from placewire.optimizer.published.reductions.topological import m_topo


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group can run on no device."""

    def caps(capacities: DeviceCapacities) -> list[float]:
        return [memory_cap(capacities)] * len(capacities.left_bytes)

    return fill_in_order(problem, "m-topo", m_topo(problem.graph), caps)


def memory_cap(capacities: DeviceCapacities) -> float:
    """Bytes per device. Co-location groups are placed whole, so the largest need is a group's."""
    return sum(capacities.needed) / len(capacities.left_bytes) + max(capacities.needed, default=0.0)


ENGINE = filling_engine(
    "filled evenly, breadth first", solve, paper="Jeon et al., Baechi (SoCC 2020)",
    section="m-TOPO", reduction="none",
)  # fmt: skip
