"""Tells the forward half of a training step."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import BoolArray
from placewire.optimizer.graph.operator_graph import OperatorGraph


def forward_half(graph: OperatorGraph) -> BoolArray | None:
    """bool[n]: what the loss needs; None where the graph's notes do not say which operator makes
    the loss."""
    loss = graph.index_of.get(str(graph.notes.get("loss")))
    if loss is None:
        return None
    found = np.zeros(graph.operator_count, dtype=np.bool_)
    found[loss] = True
    for i in graph.topological_order[::-1].tolist():
        if found[i]:
            found[graph.tensor_producer[graph.input_tensors(i)]] = True
    return found
