"""Scheduler `list`: any placement's order by the longest path that is left, as HeteroG has it.

Yi, Zhang, Luo, Long, Diao, Wu, Zheng, Yang, Lin: "Optimizing distributed training deployment in
heterogeneous GPU clusters" (CoNEXT 2020): a device that is idle runs the ready operator of highest
rank, which is its own time and the longest path behind it, transfers between devices being
operators too. The thesis evaluates its baselines so (section 5.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.schedulers import Scheduler
from placewire.optimizer.problem import Problem

if TYPE_CHECKING:
    from placewire.optimizer.kernels.tables import Tables


def by_remaining_path(
    problem: Problem, device: IntArray, tables: Tables | None = None
) -> FloatArray:
    """float64[n]: the rank of each operator on device int64[n], transfers at their pair's widest
    rate. It falls along every edge, or stays where an operator takes no time. tables: the
    problem's, where they are made already."""
    from placewire.optimizer.kernels.simulation.message_urgency import remaining_seconds
    from placewire.optimizer.kernels.tables import tables_of

    return remaining_seconds(tables_of(problem) if tables is None else tables, device)


SCHEDULER = Scheduler(
    "by the longest path that is left, as HeteroG does",
    by_remaining_path,
    paper="Yi et al., HeteroG (CoNEXT 2020)",
)
