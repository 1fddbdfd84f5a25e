"""Our own reductions, as the registry loads them."""

from __future__ import annotations

from functools import partial

from placewire.optimizer.reductions.chain import apply_chain
from placewire.optimizer.reductions.colocation import merge_colocated
from placewire.optimizer.reductions.fusion import fuse
from placewire.optimizer.reductions.mild import reduce_mildly
from placewire.optimizer.reductions.reduction import Reduction

AUTO = Reduction(
    "written-out updates; then by size: nothing, chains, or to 500 operators with a hardly longer "
    "critical path",
    reduce_mildly,
)
NONE = Reduction("nothing", partial(apply_chain, reductions=()))
CHAIN = Reduction(
    "chains and operators without cost (algorithm 1 of the thesis with alpha 0)", fuse
)
FUSION = Reduction(
    "the same, after what is co-located became one operator where no cycle arises",
    partial(apply_chain, reductions=(merge_colocated, fuse)),
)
