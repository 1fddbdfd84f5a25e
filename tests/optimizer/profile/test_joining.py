"""Joined profiles of several servers: a column for each, and the largest memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.graph.operator_graph import (
    GraphError,
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.profile.joining import joined


def measured(
    device_type: str, seconds: float, workspace: tuple[int, int], program: int | None
) -> OperatorGraph:
    rows = [OperatorRow(id=i, type="any", seconds={device_type: seconds}) for i in "pq"]
    notes = {
        "loss": "q", "server": f"on-{device_type}", "torch": "2.13", "program_bytes": program,
        "one_device_bytes": 8 + sum(workspace),
    }  # fmt: skip
    graph = build_graph(rows, [TensorRow("p", ("q",), 8)], notes=notes)
    return replace(graph, workspace_bytes=np.array(workspace))


def test_columns_stand_side_by_side_and_memory_is_the_most() -> None:
    graphs = {
        "x": measured("x", 1.0, (10, 5), 100), "y": measured("y", 2.0, (7, 9), 300),
        "z": measured("z", 3.0, (0, 0), None),
    }  # fmt: skip
    graph = joined(graphs)
    assert graph.device_types == ("x", "y", "z")
    assert graph.seconds.tolist() == [[1.0, 2.0, 3.0]] * 2
    assert graph.workspace_bytes.tolist() == [10, 9]
    assert graph.structure_hash == graphs["x"].structure_hash
    assert graph.notes["loss"] == "q" and graph.notes["program_bytes"] == 300
    assert graph.notes["one_device_bytes"] == 24, "that of y, which is not the first"
    assert {k: v["server"] for k, v in graph.notes["profiles"].items()} == {
        "x": "on-x", "y": "on-y", "z": "on-z",
    }  # fmt: skip
    assert "server" not in graph.notes


def test_another_shape_is_another_step() -> None:
    one, other = measured("x", 1.0, (0, 0), None), measured("y", 1.0, (0, 0), None)
    other = replace(other, signatures=("f4[8]", ""))
    with pytest.raises(GraphError, match=r"on-x \(x\) .*on-y \(y\) .*first operators .* 'p'"):
        joined({"x": one, "y": other})
