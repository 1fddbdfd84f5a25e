"""The whole reductions of two papers: thesis, Algorithm 2 with expansion; QuickP, section IV.

Operators that are co-located but not fused stay separate and share a co-location key of the reduced
graph: the groups W of the thesis' P3 and of QuickP's P2.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.rank_colocation import (
    expand_groups,
    icc_rank_rates,
    rank_colocation,
    thesis_rank_rates,
)
from placewire.optimizer.published.reductions.thresholds import (
    Thresholds,
    icc_alpha,
    thesis_thresholds,
)
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.fusion import fused_groups
from placewire.optimizer.reductions.merging import MergingGraph, operator_delay
from placewire.optimizer.reductions.reduction import Reduction


def reduce_as_thesis(problem: Problem) -> Reduced:
    """Algorithm 2 with the thresholds of the graph as given, then expansion."""
    return fuse_and_colocate(problem, thesis_thresholds(operator_delay(problem)))


def fuse_and_colocate(problem: Problem, thresholds: Thresholds) -> Reduced:
    """Algorithm 2: repeats fusion, co-location by rank and fusion within groups until the last of
    the three changes nothing; then ungrouped operators below beta join a neighbouring group.

    Acyclicity is tested on the whole graph, not on the group's part of it (line 16), which would
    admit cycles through other operators. The graph's own keys hold throughout.

    Each turn goes through the whole graph and may merge only one pair: where two operators feed the
    same 2,000 light ones, 2,000 turns take 18 s.
    """
    alpha = thresholds.alpha_seconds
    rates = thesis_rank_rates(problem.cluster)
    small, member = problem, np.arange(problem.graph.operator_count)
    while True:
        small, member = _step(small, member, fused_groups(small, alpha))
        keys = rank_colocation(small, rates)
        within = fused_within(small, keys, alpha)
        if len(np.unique(within)) == len(within):
            break
        small, member = _step(small, member, within)
    keys = expand_groups(small, keys, thresholds.beta_seconds)
    return contract(problem, member, keys[member])


def reduce_as_icc(problem: Problem) -> Reduced:
    """Algorithm 1 with alpha at the 90th percentile, then co-location by rank with QuickP's two
    bandwidths; no iteration, no expansion."""
    group = fused_groups(problem, icc_alpha(operator_delay(problem)))
    small, member = _step(problem, np.arange(problem.graph.operator_count), group)
    keys = rank_colocation(small, icc_rank_rates(problem.cluster))
    return contract(problem, member, keys[member])


def fused_within(problem: Problem, colocation: IntArray, alpha: float) -> IntArray:
    """int64[n]: the operator that each is fused into by FusionWithinWCC of Algorithm 2, which takes
    the edges within the groups colocation int64[n] in the recorded order."""
    from placewire.optimizer.kernels.graphs import fusing

    graph = MergingGraph(problem, colocation)
    fusing.fuse_within(graph.tables, graph.edges_in_order(), alpha)
    return graph.groups()


def _step(problem: Problem, member: IntArray, group: IntArray) -> tuple[Problem, IntArray]:
    """Contracts the groups; member int64[operators as given] then names the new operators."""
    dense = np.unique(group, return_inverse=True)[1].reshape(len(group))
    return contract(problem, group)[0], dense[member]


THESIS = Reduction(
    "fusion and co-location by rank in turns, then expansion of the groups",
    reduce_as_thesis,
    paper="Joint Optimization of Algebraic Transformation, Device Placement … (thesis)",
    section="4.1-4.3, algorithm 2",
)
ICC = Reduction(
    "fusion, then co-location by rank",
    reduce_as_icc,
    paper="QuickP (ICC 2025)",
    section="IV, algorithm 1, (7)",
)
