"""Finds what all micro-batches read and none makes: weights, and what is made of them or of
constants, as the mask of an attention or the join of a weight's shards."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray
from placewire.optimizer.graph.operator_graph import OperatorGraph

_KEPT = "_common_operators"


def common_operators(graph: OperatorGraph) -> BoolArray:
    """bool[n]: the operators that depend on no micro-batch, and on which some micro-batch
    depends. Kept with the graph."""
    if _KEPT not in graph.__dict__:
        graph.__dict__[_KEPT] = _common_operators(graph)
    found: BoolArray = graph.__dict__[_KEPT]
    return found


def _common_operators(graph: OperatorGraph) -> BoolArray:
    source, target, _ = graph.edges
    inside = graph.micro_batch >= 0
    position = graph.position
    depends, serves = inside.copy(), inside.copy()
    for k in np.argsort(position[target], kind="stable").tolist():
        depends[target[k]] |= depends[source[k]]
    for k in np.argsort(-position[source], kind="stable").tolist():
        serves[source[k]] |= serves[target[k]]
    return serves & ~depends
