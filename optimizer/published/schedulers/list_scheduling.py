"""Scheduler `list`: orders the operators of a placement by the longest path left, as HeteroG does.

Yi, Zhang, Luo, Long, Diao, Wu, Zheng, Yang, Lin: "Optimizing distributed training deployment in
heterogeneous GPU clusters" (CoNEXT 2020): an idle device runs the ready operator of the highest
rank. The rank is the operator's own time plus the longest path behind it; transfers between devices
count as operators. The thesis uses it for the methods that it compares with (section 5.2).
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
    """float64[n]: the rank of each operator on device int64[n], with transfers at their pair's
    widest rate. The rank falls along every edge, or stays where an operator takes no time. tables:
    the problem's, if they exist already."""
    from placewire.optimizer.kernels.simulation.message_urgency import remaining_seconds
    from placewire.optimizer.kernels.tables import tables_of

    return remaining_seconds(tables_of(problem) if tables is None else tables, device)


SCHEDULER = Scheduler(
    "by the longest path that is left, as HeteroG does",
    by_remaining_path,
    paper="Yi et al., HeteroG (CoNEXT 2020)",
)
