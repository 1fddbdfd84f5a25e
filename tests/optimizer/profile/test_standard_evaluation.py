"""Standard Evaluation: is a large batch estimated from small ones, and replaced by what ran?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewire.optimizer.commands.profile import main
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.json_file import write_json
from placewire.optimizer.graph.operator_graph import (
    GraphError,
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.profile.recorded import deviation, with_recorded
from placewire.optimizer.profile.rough import held_bytes, roughly
from placewire.optimizer.trace.document import Span, Trace, TracedDevice, trace_to_json
from placewire.optimizer.trace.trace_file import Detail

MLP = "placewire.examples.models.mlp:training_step"


def step(batch: int, seconds: tuple[float, float], workspace: tuple[int, int]) -> OperatorGraph:
    """A graph of a parameter and two operators that leave 100 bytes per sample."""
    left = 100 * batch
    rows = [OperatorRow("w", "parameter", {"cpu": 0.0}, weight_bytes=64)]
    for name, took, beside in zip(("mm", "relu"), seconds, workspace, strict=True):
        rows.append(OperatorRow(name, "x", {"cpu": took}, "", 0, left, beside))
    return build_graph(rows, [TensorRow("w", ("mm",), 64), TensorRow("mm", ("relu",), left)])


SMALL = {
    1: step(1, (2.0, 5.0), (20, 0)),
    2: step(2, (3.0, 4.0), (30, 10)),
    3: step(3, (4.0, 3.0), (40, 5)),
}


def span(name: str, start: float, seconds: float, workspace: Detail, row: str = "compute") -> Span:
    return Span(7, row, name, start, start + seconds, {"workspace_bytes": workspace})


def trace(graph: OperatorGraph, *spans: Span) -> Trace:
    device = TracedDevice(0, "s1/0", "measured", {7: 9.0}, spans)
    return Trace(graph.structure_hash, (device,))


def test_every_operator_has_a_line_of_its_own() -> None:
    """mm: 10 + 10 b of workspace, 1 + b seconds; relu: bytes 100, 210, 305 lie about 0 + 102.5 b,
    seconds 6 - b would be less than none at 10, and are their mean."""
    rough = roughly(SMALL, step(10, (0.0, 0.0), (0, 0)), 10)
    assert rough.seconds[:, 0] == pytest.approx([0.0, 11.0, 4.0])
    assert rough.workspace_bytes.tolist() == [0, 110, 25]
    assert rough.activation_bytes.tolist() == [0, 1000, 1000]
    assert rough.notes["estimated_from_batches"] == [1, 2, 3]


def test_what_cannot_be_extrapolated_is_refused() -> None:
    wanted = step(10, (0.0, 0.0), (0, 0))
    with pytest.raises(GraphError, match="two small batches"):
        roughly({4: SMALL[1]}, wanted, 10)
    other = build_graph([OperatorRow("w", "parameter", {"cpu": 0.0})], [])
    with pytest.raises(GraphError, match="at batch 5 the step has other operators"):
        roughly({1: SMALL[1], 5: other}, wanted, 10)


def test_what_ranks_recorded_replaces_the_estimate() -> None:
    rough = roughly(SMALL, step(10, (0.0, 0.0), (0, 0)), 10)
    spans = [span("mm", k, seconds, 90) for k, seconds in enumerate((9.0, 10.0, 30.0))]
    first = trace(rough, *spans, span("mm", 0.0, 99.0, 0, row="a sends"), span("w", 3.0, 0.1, 8))
    second = trace(rough, span("relu", 0.0, 2.0, 0))
    measured = with_recorded(rough, [first, second])
    assert measured.seconds[:, 0] == pytest.approx([0.0, 10.0, 2.0])
    assert measured.workspace_bytes.tolist() == [0, 90, 0]
    assert held_bytes(measured).tolist() == [0.0, 1090.0, 1000.0]
    with pytest.raises(GraphError, match="no trace has operator 'relu'"):
        with_recorded(rough, [first])
    with pytest.raises(GraphError, match="another graph"):
        with_recorded(rough, [replace(first, structure_hash="0")])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (span("zz", 0.0, 1.0, 0), "times 'zz', which is no operator"),
        (span("mm", 3.0, -1.0, 0), "has operator 'mm' end before it starts"),
        (span("mm", 0.0, 1.0, -1), "gives operator 'mm' workspace_bytes -1, expected a"),
        (span("mm", 0.0, 1.0, 10**30), "gives operator 'mm' workspace_bytes 1000"),
        (span("mm", 0.0, 1.0, 1e300), "gives operator 'mm' workspace_bytes 1e+300"),
        (span("mm", 0.0, 1.0, "much"), "gives operator 'mm' workspace_bytes 'much', expected"),
    ],
)
def test_a_trace_with_what_cannot_be_is_refused_by_rank_and_operator(wrong, what) -> None:
    rough = roughly(SMALL, step(10, (0.0, 0.0), (0, 0)), 10)
    rest = [span(name, 0.0, 1.0, 0) for name in ("mm", "relu")]
    with pytest.raises(GraphError, match=re.escape("the trace of rank 0 (s1/0) " + what)):
        with_recorded(rough, [trace(rough, *rest, wrong)])


def test_deviations_are_those_of_table_5() -> None:
    """|e - a| / a of 0.1, 0.5 and 0, where something was measured."""
    found = deviation(np.array([1.1, 3.0, 5.0, 4.0]), np.array([1.0, 2.0, 5.0, 0.0]))
    assert (found.operators, found.within_30_percent) == (3, pytest.approx(2 / 3))
    assert found.average == pytest.approx(0.2)
    assert found.whole == pytest.approx(9.1 / 8.0 - 1.0)


def test_a_small_model_is_estimated_as_it_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line: memory is exact to the byte, and a trace replaces the times."""
    rough, direct = tmp_path / "rough.json", tmp_path / "direct.json"
    options = [MLP, "--batch", "256", "--samples", "2"]
    assert main([*options, "--small-batches", "64", "128", "--out", str(rough)]) == 0
    assert main([*options, "--out", str(direct)]) == 0
    estimated, measured = load_graph(rough), load_graph(direct)
    assert estimated.structure_hash == measured.structure_hash
    assert measured.workspace_bytes.sum() > 256 * 512
    assert held_bytes(estimated) == pytest.approx(held_bytes(measured), rel=0.01)
    assert (estimated.seconds > 0).sum() > 0 and estimated.notes["program_bytes"] > 0
    # The notes are about the wanted batch, not about a small one.
    assert estimated.notes["one_device_bytes"] == pytest.approx(
        measured.notes["one_device_bytes"], rel=0.01
    )
    assert "whole_step_seconds" not in estimated.notes

    took = [span(name, k, 0.5, 3) for k, name in enumerate(measured.ids)]
    write_json(tmp_path / "rank0.json", trace_to_json(trace(measured, *took)))
    recorded = [str(rough), "--recorded", str(tmp_path / "rank0.json")]
    assert main([*recorded, "--out", str(tmp_path / "again.json")]) == 0
    again = load_graph(tmp_path / "again.json")
    assert again.seconds.max() == pytest.approx(0.5) and again.workspace_bytes.max() == 3
    said = capsys.readouterr().err
    assert "memory: the estimate is off by" in said and "time: the estimate is off by" in said
