"""Our own reductions, as the registry loads them."""

from __future__ import annotations

from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.chain import apply_chain
from placewire.optimizer.reductions.colocation import merge_colocated
from placewire.optimizer.reductions.contract import Reduced
from placewire.optimizer.reductions.fusion import fuse
from placewire.optimizer.reductions.mild import reduce_mildly
from placewire.optimizer.reductions.reduction import Reduction


def _nothing(problem: Problem) -> Reduced:
    return apply_chain(problem, ())


def _colocated_and_fused(problem: Problem) -> Reduced:
    return apply_chain(problem, (merge_colocated, fuse))


AUTO = Reduction(
    "by size: nothing, chains, or to 500 operators with a hardly longer critical path",
    reduce_mildly,
)
NONE = Reduction("nothing", _nothing)
CHAIN = Reduction(
    "chains and operators without cost (algorithm 1 of the thesis with alpha 0)", fuse
)
FUSION = Reduction(
    "the same, after what is co-located became one operator where no cycle arises",
    _colocated_and_fused,
)
