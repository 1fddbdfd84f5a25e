"""Traces: the format holds, every operator is there once, and files of one job become one."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement, save_placement
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.trace.document import (
    Span,
    Trace,
    TracedDevice,
    TraceError,
    trace_from_json,
    trace_to_json,
)
from placewire.optimizer.trace.merging import merged
from placewire.optimizer.trace.predicted import predicted_trace
from tests.optimizer.bundled_placements import ON, placed, two_small
from tests.optimizer.cases import cluster, graph
from tests.trace_files import (
    check_trace,
    computed,
    expected_operators,
    expected_transfers,
    transfers,
)

FORK = graph(
    {"A": 0.02, "B": 0.3, "C": 0.3, "D": 0.3, "E": 0.02},
    [
        ("A", ["B", "C", "D"], 70_000),
        ("B", ["E"], 90_000),
        ("C", ["E"], 10_000),
        ("D", ["E"], 80_000),
    ],
)


def spread(sharing: SharingName) -> Placement:
    """On three servers of two rails: several messages are under way at once."""
    problem = Problem(FORK, cluster(3, (4e7, 2e7), latency=1e-3), sharing)
    placement = place(problem, "auto", SolveSettings(gap=0.0, moves=300))
    assert len(placement.devices_used) == 3
    return placement


@pytest.mark.parametrize("sharing", ["strict", "job", "unshaped"])
def test_a_prediction_has_every_operator_and_every_message(sharing: SharingName) -> None:
    placement = spread(sharing)
    document = trace_to_json(predicted_trace(FORK, placement, [0, 7]))
    check_trace(document)
    assert computed(document, "predicted") == expected_operators(placement, [0, 7])
    assert transfers(document, "predicted") == expected_transfers(placement, [0, 7])
    last = max(e["ts"] + e["dur"] for e in document["traceEvents"] if e["ph"] == "X")
    assert last == pytest.approx(2 * placement.step_seconds * 1e6)


def test_a_bundle_is_one_message_and_no_operator() -> None:
    """Ranks name it by the tensor that is made last, and so does the prediction."""
    problem = two_small()
    placement = placed(problem, ON)
    assert placement.messages[0].bundled
    document = trace_to_json(predicted_trace(problem.graph, placement, [0]))
    check_trace(document)
    assert computed(document, "predicted") == expected_operators(placement, [0])
    assert transfers(document, "predicted") == expected_transfers(placement, [0])
    sent = {e["name"] for e in document["traceEvents"] if e.get("args", {}).get("bytes") == 200}
    assert sent == {"B"}


def test_bytes_of_a_cut_message_add_up() -> None:
    placement = spread("strict")
    document = trace_to_json(predicted_trace(FORK, placement, [0]))
    for m in placement.messages:
        parts = [
            event["args"]["bytes"]
            for event in document["traceEvents"]
            if event["ph"] == "X" and event["name"] == m.producer
            and event.get("cat", "").endswith("receives")
            and event["args"]["send_order"] == m.send_order
        ]  # fmt: skip
        assert len(parts) == len(m.rails) and sum(parts) == pytest.approx(m.bytes, abs=1)


def test_a_written_trace_is_read_back() -> None:
    trace = predicted_trace(FORK, spread("job"), [3, 4])
    again = trace_from_json(json.loads(json.dumps(trace_to_json(trace))))
    assert trace_to_json(again) == trace_to_json(trace)
    assert again.structure_hash == FORK.structure_hash


def measured(step: int, seconds: float, *spans: Span, rank: int = 0) -> Trace:
    made = TracedDevice(rank, f"s{rank + 1}/0", "measured", {step: seconds}, spans)
    return Trace(FORK.structure_hash, (made,))


def message(direction: str, peer: str, start: float, finish: float) -> Span:
    details: dict[str, str | int | float] = {"peer": peer, "output": 0, "bytes": 5, "send_order": 0}
    return Span(8, f"a {direction}", "A", start, finish, details)


def test_ranks_meet_at_their_barriers_and_a_receive_begins_where_it_was_sent() -> None:
    sender = measured(8, 2.0, message("sends", "s2/0", 0.5, 0.9))
    receiver = measured(8, 3.0, message("receives", "s1/0", 0.8, 1.0), rank=1)
    document = trace_to_json(merged([sender, receiver]))
    check_trace(document)
    starts = {e["cat"]: e["ts"] for e in document["traceEvents"] if e["ph"] == "X"}
    assert starts == {"step": 0, "a sends": 0.5e6, "a receives": 0.5e6}


def test_a_step_is_as_long_as_its_slowest_rank() -> None:
    quick, slow = measured(8, 1.0), measured(8, 4.0, rank=1)
    later = TracedDevice(2, "s3/0", "measured", {9: 1.0}, (Span(9, "compute", "A", 0.5, 0.6, {}),))
    document = trace_to_json(merged([quick, slow, Trace(FORK.structure_hash, (later,))]))
    assert [e["ts"] for e in document["traceEvents"] if e.get("cat") == "compute"] == [4.5e6]


def test_steps_of_any_length_follow_one_another_without_overlap() -> None:
    """Sums of times are rounded in the file as the times themselves are."""
    seconds = {step: (step + 1) * 1.23456789e-4 / 3 for step in range(40)}
    device = TracedDevice(0, "s1/0", "measured", seconds, ())
    check_trace(trace_to_json(Trace(FORK.structure_hash, (device,))))


def test_messages_under_way_together_get_rows_of_their_own() -> None:
    spans = [message("sends", "s2/0", *times) for times in ((0.0, 0.5), (0.1, 0.2), (0.5, 0.6))]
    document = trace_to_json(measured(8, 1.0, *spans))
    check_trace(document)
    rows = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert rows == ["step", "compute", "a sends", "a sends 2"]


def test_traces_of_two_jobs_are_not_merged() -> None:
    with pytest.raises(TraceError, match="different graphs"):
        merged([measured(8, 1.0), replace(measured(8, 1.0, rank=1), structure_hash="f" * 64)])
    with pytest.raises(TraceError, match="twice"):
        merged([measured(8, 1.0), measured(9, 1.0)])


@pytest.mark.parametrize(
    "document", [[], {}, {"otherData": {"version": 1}}, {"otherData": {"version": 2}}, "x"]
)
def test_another_file_is_no_trace(document: Any) -> None:
    with pytest.raises(TraceError, match=r"file\.json: "):
        trace_from_json(document, where="file.json")


INFINITE = float("inf")


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"args": {"step": 8, "output": 0}}, "traceEvents.*args"),
        ({"args": {"step": 8, "peer": "s2/0", "output": []}}, "traceEvents.*args.output"),
        ({"args": {"step": 8, "bytes": INFINITE}}, "traceEvents.*args.bytes"),
        ({"args": {"step": 8, "peer": 5, "output": 0}}, "traceEvents.*args"),
        ({"args": {"step": 7, "peer": "s2/0", "output": 0}}, "step 7"),
        ({"args": {"peer": "s2/0", "output": 0}}, "traceEvents.*args"),
        ({"args": 5}, "traceEvents.*args"),
        ({"pid": INFINITE}, "traceEvents.*pid"),
        ({"ts": 1e308, "dur": 1e308}, "traceEvents.*ts"),
        ({"dur": INFINITE}, "traceEvents.*dur"),
        ({"name": 5}, "traceEvents.*name"),
        ({"steps": {"8": INFINITE}}, "otherData.steps"),
        ({"rank": INFINITE}, "otherData.devices.0.rank"),
        ({"rank": -1}, "otherData.devices.0.rank"),
        ({"source": "heard"}, "otherData.devices.0.source"),
    ],
)
def test_a_trace_with_a_wrong_value_is_refused_with_its_place(
    tmp_path: Path,
    files: tuple[OperatorGraph, Placement],
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    where: str,
) -> None:
    document = trace_to_json(measured(8, 0.7, message("sends", "s2/0", 0.1, 0.2)))
    header = document["otherData"]
    (event,) = (e for e in document["traceEvents"] if e.get("cat") == "a sends")
    for key, value in changed.items():
        one = next(place for place in (event, header, header["devices"][0]) if key in place)
        one[key] = value
    rank = tmp_path / "rank.json"
    rank.write_text(json.dumps(document))
    assert trace(tmp_path, "--merge", str(rank)) == 3
    said = capsys.readouterr().err
    assert re.search(f"error: {re.escape(str(rank))}: no trace of Placewire: {where}", said), said


@pytest.fixture
def files(tmp_path: Path) -> tuple[OperatorGraph, Placement]:
    placement = spread("strict")
    save_graph(FORK, tmp_path / "graph.json")
    save_placement(placement, tmp_path / "placement.json")
    return FORK, placement


def trace(folder: Path, *more: str) -> int:
    given = [str(folder / "graph.json"), str(folder / "placement.json")]
    return main(["trace", *given, "--out", str(folder / "trace.json"), *more])


def test_the_command_writes_the_prediction_and_ranks_beside_it(
    tmp_path: Path, files: tuple[OperatorGraph, Placement], capsys: pytest.CaptureFixture[str]
) -> None:
    _, placement = files
    assert trace(tmp_path) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    alone = read_json(tmp_path / "trace.json")
    check_trace(alone)
    assert computed(alone, "predicted") == expected_operators(placement, [0])
    rank = measured(8, 0.7, Span(8, "compute", "A", 0.1, 0.2, {}))
    (tmp_path / "rank0.json").write_text(json.dumps(trace_to_json(rank)))
    assert trace(tmp_path, "--merge", str(tmp_path / "rank0.json")) == 0
    both = read_json(tmp_path / "trace.json")
    check_trace(both)
    assert computed(both, "predicted") == expected_operators(placement, [8])
    assert computed(both, "measured") == {"s1/0": Counter({(8, "A"): 1})}


def test_a_rank_of_another_job_is_refused(
    tmp_path: Path, files: tuple[OperatorGraph, Placement], capsys: pytest.CaptureFixture[str]
) -> None:
    rank = tmp_path / "rank.json"
    rank.write_text(json.dumps(trace_to_json(measured(8, 0.7, rank=5))))
    assert trace(tmp_path, "--merge", str(rank)) == 3
    assert "s6/0 as rank 5" in capsys.readouterr().err
    rank.write_text("{}")
    assert trace(tmp_path, "--merge", str(rank)) == 3
    assert f"{rank}: no trace" in capsys.readouterr().err
