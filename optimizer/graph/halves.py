"""Tells the forward half of a training step."""

from __future__ import annotations

import hashlib
import re

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


def forward_hash(graph: OperatorGraph) -> str:
    """Covers what the loss is computed from, but no gradient and no update: steps that differ in
    how weights are updated, or in what they report beside the loss, have the same. "" where the
    graph's notes do not say which operator makes the loss."""
    forward = forward_half(graph)
    if forward is None:
        return ""
    digest, number = hashlib.sha256(), dict[int, int]()
    start, outputs = graph.outputs

    def numbered(name: re.Match[str]) -> str:
        """Names depend on what else the graph has."""
        return f"%{number[graph.index_of[name[1]]]}" if name[1] in graph.index_of else name[0]

    for i in graph.topological_order.tolist():
        if not forward[i]:
            continue
        number[i] = len(number)
        read = [
            (number[made], e - int(outputs[start[made]]))
            for e in graph.input_tensors(i).tolist()
            for made in [int(graph.tensor_producer[e])]
        ]
        signature = re.sub(r"%(\w+)", numbered, graph.signatures[i])
        row = graph.types[i], signature, sorted(read)
        digest.update(f"{row}\x1e".encode())
    return digest.hexdigest()
