"""Engine `order-place`: Celeritas' Order-Place.

Xu, Xie, Liao, Zhou: "Celeritas: fast optimizer for large dataflow graphs" (2022), sections 5.2 and
6.2.2: operators in the order of CPD-TOPO fill one device until its memory is full, then the next.
Where all are full, an operator goes to the device with the lowest memory usage (6.3). The method
runs on the graph that the paper's own fusion makes (5.1), unless another reduction is asked for.
"""

from __future__ import annotations

from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.filling import fill_in_order
from placewire.optimizer.published.engines.shared.kinds import filling_engine
from placewire.optimizer.published.reductions.topological import cpd_topo


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group can run on no device."""
    return fill_in_order(problem, "order-place", cpd_topo(problem), lambda c: c.left_bytes)


ENGINE = filling_engine(
    "Order-Place: filled along critical paths", solve, paper="Xu et al., Celeritas (2022)",
    section="5.2", reduction="celeritas",
)  # fmt: skip
