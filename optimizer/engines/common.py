"""Finds what all micro-batches read and none makes: weights, and what is made of them or of
constants, as the mask of an attention or the join of a weight's shards."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray
from placewire.optimizer.graph.operator_graph import OperatorGraph


def common_operators(graph: OperatorGraph) -> BoolArray:
    """bool[n]: the operators that depend on no micro-batch, and on which some micro-batch
    depends."""
    source, target, _ = graph.edges
    inside = graph.micro_batch >= 0
    position = graph.position
    depends, serves = inside.copy(), inside.copy()
    for k in np.argsort(position[target], kind="stable").tolist():
        depends[target[k]] |= depends[source[k]]
    for k in np.argsort(-position[source], kind="stable").tolist():
        serves[source[k]] |= serves[target[k]]
    return serves & ~depends
