"""Tells the forward half of a step, and what updates its weights."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from placewire.optimizer.arrays import BoolArray
from placewire.optimizer.graph.operator_graph import UPDATE, OperatorGraph

# Ids of what a decomposed step updates a weight or its optimizer state by begin so.
WRITTEN_OUT = ("update_", "copy_optimizer__")


def forward_half(graph: OperatorGraph) -> BoolArray | None:
    """bool[n]: what the loss needs or, of a forward pass alone, what its outputs need; None where
    the graph's notes do not say which operators make these."""
    loss = graph.notes.get("loss")
    named = graph.notes.get("outputs") or () if loss is None else (loss,)
    made = [i for one in named if (i := graph.index_of.get(str(one))) is not None]
    if not made:
        return None
    found = np.zeros(graph.operator_count, dtype=np.bool_)
    found[made] = True
    for i in graph.topological_order[::-1].tolist():
        if found[i]:
            found[graph.tensor_producer[graph.input_tensors(i)]] = True
    return found


def updates(graph: OperatorGraph) -> BoolArray:
    """bool[n]: what updates weights: operators of type `update`, and in a decomposed step the
    operators that these are written out as, by their ids."""
    decomposed = bool(graph.notes.get("decompose"))
    return np.array(
        [
            kind == UPDATE or (decomposed and name.startswith(WRITTEN_OUT))
            for kind, name in zip(graph.types, graph.ids, strict=True)
        ],
        dtype=np.bool_,
    )


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
