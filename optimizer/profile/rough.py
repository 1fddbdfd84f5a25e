"""Estimates time and memory of operators at a large batch from profiles at small batches.

This is the first step of Celeritas' Standard Evaluation (section 4.2.1): where no device can hold a
step of the wanted batch, steps of smaller batches are measured, and a line over the batch is fitted
to each operator's memory. The same is done for its time, which is only a rough estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph


def roughly(small: Mapping[int, OperatorGraph], wanted: OperatorGraph, batch: int) -> OperatorGraph:
    """Returns `wanted`, the step captured at `batch`, with estimated seconds and workspace. small:
    by batch, profiles of the same step on the same device types.

    An operator's memory is what it leaves plus its workspace; what it leaves at `batch` is known
    from the capture, and the estimate is never below it. A time is never below the mean of the
    measured ones: noise hides short times, so that their lines may fall.

    Raises GraphError for fewer than two batches, and where another batch has other operators.
    """
    if len(small) < 2:
        raise GraphError("an estimate needs profiles at two small batches or more")
    for size, graph in small.items():
        if graph.ids != wanted.ids:
            raise GraphError(
                f"at batch {size} the step has other operators than at batch {batch}: give small "
                "batches at which it has the same"
            )
    batches = np.array(list(small), dtype=np.float64)
    graphs = list(small.values())
    memory = at_batch(batches, np.array([held_bytes(g) for g in graphs]), batch)
    workspace = np.rint(np.maximum(memory - wanted.activation_bytes, 0.0)).astype(np.int64)
    seconds = {}
    for k, name in enumerate(graphs[0].device_types):
        measured = np.array([g.seconds[:, k] for g in graphs])
        seconds[name] = np.maximum(at_batch(batches, measured, batch), measured.mean(axis=0))
    notes = {**wanted.notes, "estimated_from_batches": sorted(small)}
    return replace(wanted.with_seconds(seconds), workspace_bytes=workspace, notes=notes)


def held_bytes(graph: OperatorGraph) -> FloatArray:
    """Returns float64[n]: what each operator leaves plus its workspace."""
    return (graph.activation_bytes + graph.workspace_bytes).astype(np.float64)


def at_batch(batches: FloatArray, values: FloatArray, batch: float) -> FloatArray:
    """Returns float64[n]: the value at `batch` of each column's least-squares line. values:
    float64[b, n], measured at batches float64[b]."""
    middle = batches.mean()
    slope = (batches - middle) @ (values - values.mean(axis=0)) / ((batches - middle) ** 2).sum()
    line: FloatArray = values.mean(axis=0) + slope * (batch - middle)
    return line
