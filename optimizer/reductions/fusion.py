"""Operator fusion: thesis, section 4.1, Algorithm 1, repeated until no edge fuses.

An edge (i, j) is merged where i has one successor or j one predecessor (otherwise never), and
either both hold, or the one that hangs on a single edge takes at most alpha. With one of the two
degrees 1, the edge is the only path from i to j in the whole graph, so no cycle can arise.

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
    """alpha: seconds; 0 fuses chains and operators that cost nothing."""
    return contract(problem, fused_groups(problem, alpha))


def fused_groups(problem: Problem, alpha: float) -> IntArray:
    """int64[n]: the operator into which each was fused."""
    from placewire.optimizer.kernels.graphs import fusing

    graph = MergingGraph(problem)
    fusing.fuse(graph.tables, alpha, 0)
    return graph.groups()
