"""Engine `heft`: heterogeneous earliest finish time, as optimizer/engines/heft.py computes it.

The paper does not consider memory; here a device takes nothing that it has no room for.
"""

from __future__ import annotations

from placewire.optimizer.engines.device_capacity import within_memory
from placewire.optimizer.engines.heft import by_rank, inserted
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.kinds import list_engine


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where an operator, with its group, finds no device with room."""
    order = by_rank(problem)
    return within_memory(problem, "heft", lambda capacities: inserted(problem, capacities, order))


ENGINE = list_engine(
    "by upward rank, where it ends first", solve, paper="Topcuoglu et al., HEFT (TPDS 2002)",
    section="4.1", reduction=None,
)  # fmt: skip
