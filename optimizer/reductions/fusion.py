"""Operator fusion: Algorithm 1 of the thesis (section 4.1), repeated until no edge fuses.

An edge (i, j) is merged if i has one successor and j one predecessor, or if only one of these
holds and the operator it holds for takes at most alpha. The edge is then the only path from i to j
in the whole graph, so no cycle can arise.

Degrees count distinct neighbours, ordering edges of 0 bytes included. The thesis assumes that each
device has memory enough (theorem 1); where that is false, groups are kept small beside a device.
"""

from __future__ import annotations

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph, operator_delay

__all__ = ["fuse", "fused_groups", "operator_delay"]


def fuse(problem: Problem, alpha: float = 0.0) -> Reduced:
    """alpha: seconds; 0 fuses only chains and operators that take no time."""
    return contract(problem, fused_groups(problem, alpha))


def fused_groups(problem: Problem, alpha: float) -> IntArray:
    """int64[n]: the operator into which each was fused."""
    from placewire.optimizer.kernels.graphs import fusing

    graph = MergingGraph(problem)
    fusing.fuse(graph.tables, alpha, 0)
    return graph.groups()
