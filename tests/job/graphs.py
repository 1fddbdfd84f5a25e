"""Small graphs for ranks."""

from __future__ import annotations

from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)

BYTES = 1_500_000


def fork_and_join() -> OperatorGraph:
    """first -> (left, right) -> last, with right's result twice as long on its way to be made."""
    seconds = {"first": 0.02, "left": 0.03, "right": 0.06, "idle": 0.0, "last": 0.02}
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": s}) for i, s in seconds.items()]
    tensors = [
        TensorRow("first", ("left", "right", "idle"), BYTES),
        TensorRow("left", ("last",), 3 * BYTES),
        TensorRow("right", ("last",), BYTES // 2),
        TensorRow("idle", ("last",), 0),
    ]
    return build_graph(rows, tensors)
