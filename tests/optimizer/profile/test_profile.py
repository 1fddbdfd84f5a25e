"""Profile: are measured times kept under what they depend on, and used as measured?"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import placewire.optimizer.profile.measure as measure_module
from placewire.optimizer.capture.allocations import Span, peaks_inside, read_trace
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.commands.profile import main
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph, OperatorRow, build_graph
from placewire.optimizer.profile import throttling
from placewire.optimizer.profile.sampling import Sampling
from placewire.optimizer.profile.scale import with_scaled_seconds, with_total_seconds

MLP = "placewire.examples.models.mlp:training_step"


def profile(folder: Path, *more: str) -> OperatorGraph:
    out = folder / "graph.json"
    arguments = [MLP, "--batch", "256", "--samples", "5", "--cache", str(folder / "cache")]
    assert main([*arguments, *more, "--out", str(out)]) == 0
    return load_graph(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def measured(folder: Path) -> OperatorGraph:
    return profile(folder, "--device-type", "cpu:test")


def test_what_computes_takes_time(measured: OperatorGraph) -> None:
    assert measured.device_types == ("cpu:test",)
    for i, kind in enumerate(measured.types):
        resident = kind in ("parameter", "buffer", "input")
        assert (measured.seconds[i, 0] == 0) == resident, measured.ids[i]
    products = [i for i, kind in enumerate(measured.types) if kind == "aten.mm.default"]
    views = [i for i, kind in enumerate(measured.types) if kind == "aten.t.default"]
    assert measured.seconds[products].mean() > 5 * measured.seconds[views].mean()


def test_operators_sum_to_the_whole_step(measured: OperatorGraph) -> None:
    notes = measured.notes
    assert notes["whole_step_seconds"] == pytest.approx(measured.seconds.sum())
    assert notes["sum_of_medians_seconds"] * notes["calibration"] == pytest.approx(
        measured.seconds.sum()
    )
    assert notes["threads"] == 1 and notes["samples"] == 5 and notes["warm_up_steps"] >= 2
    assert notes["processor"] and notes["torch"].startswith("2.13")
    assert notes["loss"] in measured.ids
    # This process holds what all earlier tests have loaded.
    assert 100 << 20 < notes["program_bytes"] < 8 << 30


def test_without_calibration_the_medians_are_kept(folder: Path, measured: OperatorGraph) -> None:
    raw = profile(folder, "--device-type", "cpu:test", "--no-calibrate")  # from the cache
    assert raw.notes["sum_of_medians_seconds"] == pytest.approx(raw.seconds.sum())
    assert raw.notes["calibration"] == 1
    assert raw.seconds * measured.notes["calibration"] == pytest.approx(measured.seconds)


def test_the_same_question_is_answered_from_the_cache(
    folder: Path, measured: OperatorGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    again = profile(folder, "--device-type", "cpu:test")
    assert np.array_equal(again.seconds, measured.seconds)
    assert again.profile_digest == measured.profile_digest
    assert again.structure_hash == measured.structure_hash
    printed = capsys.readouterr()
    assert "profile: from " in printed.err and printed.out == ""


def test_few_samples_are_never_taken_for_many_but_many_for_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(batch: int, *more: str) -> bool:
        words = [MLP, "--batch", str(batch), "--cache", str(tmp_path / "cache"), *more]
        assert main([*words, "--out", str(tmp_path / "graph.json")]) == 0
        return "profile: from " not in capsys.readouterr().err

    few = ("--samples", "3", "--seconds", "5")
    assert measured(4, *few) and not measured(4, *few)
    assert measured(4), "three samples are not 45"
    assert not measured(4, *few)
    assert measured(8) and not measured(8, *few)


@pytest.mark.parametrize("more", [("--device-type", "cpu:other"), ("--batch", "128")])
def test_another_question_is_measured(
    folder: Path, measured: OperatorGraph, more: tuple[str, ...]
) -> None:
    before = set((folder / "cache").iterdir())
    profile(folder, "--device-type", "cpu:test", *more)
    assert len(set((folder / "cache").iterdir()) - before) == 1


@pytest.mark.parametrize("damage", ["", pytest.param("shifted", marks=pytest.mark.thorough)])
def test_a_damaged_cache_is_measured_anew(tmp_path: Path, damage: str) -> None:
    first = profile(tmp_path)
    (file,) = (tmp_path / "cache").iterdir()
    if damage == "shifted":
        document = json.loads(file.read_text())
        document["seconds"].pop(first.ids[0])
        damage = json.dumps(document)
    file.write_text(damage)
    again = profile(tmp_path)
    assert (again.seconds > 0).sum() == (first.seconds > 0).sum()
    assert json.loads(file.read_text())["key"]["structure_hash"] == first.structure_hash


def test_it_says_where_the_kernel_held_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = iter((3, 8))
    monkeypatch.setattr(throttling, "throttled_periods", lambda own, cgroups: next(counts))
    profile(tmp_path)
    assert "held this process back 5 times" in capsys.readouterr().err


def test_what_cannot_be_captured_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "tests.models.hard:branches",
        "--batch",
        "4",
        "--out",
        str(tmp_path / "g.json"),
    ]
    assert main(arguments) == 3
    assert main([MLP, *arguments[1:], "--optimizer", "[]"]) == 3
    assert main([MLP, *arguments[1:], "--optimizer", '{"name": "lion"}']) == 3
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")][1:] == [
        line for line in lines if "--optimizer" in line or "lion" in line
    ]
    assert not any("Traceback" in line for line in lines)


def test_scaling_keeps_everything_but_the_seconds(tmp_path: Path) -> None:
    rows = [OperatorRow("p", "x", {"cpu": 0.5}, weight_bytes=3), OperatorRow("q", "x", {"cpu": 2})]
    graph = build_graph(rows, [])
    for name in (None, "fast"):
        scaled = with_scaled_seconds(graph, 0.1, name)
        assert scaled.seconds[:, 0] == pytest.approx([0.05, 0.2])
        assert scaled.device_types == (name or "cpu",)
        assert scaled.structure_hash == graph.structure_hash
        save_graph(scaled, tmp_path / "scaled.json")
    assert with_total_seconds(graph, 5.0).seconds[:, 0] == pytest.approx([1.0, 4.0])
    with pytest.raises(ValueError, match="must be positive"):
        with_scaled_seconds(graph, 0)
    two = graph.with_seconds({"cpu": graph.seconds[:, 0], "gpu": graph.seconds[:, 0]})
    with pytest.raises(ValueError, match="one only"):
        with_scaled_seconds(two, 0.1, "fast")


def taken(sampling: Sampling, step_seconds: float) -> tuple[int, int]:
    """Returns (warm-up steps, samples) where each step takes step_seconds."""
    warm_up = samples = 0
    elapsed = 0.0
    while sampling.wants_warm_up(warm_up, elapsed):
        warm_up, elapsed = warm_up + 1, elapsed + step_seconds
    while sampling.wants_sample(samples, elapsed):
        samples, elapsed = samples + 1, elapsed + step_seconds
    return warm_up, samples


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [(0.1, (5, 45)), (2.0, (5, 25)), (8.0, (2, 9)), (30.0, (2, 4)), (100.0, (2, 3))],
)
def test_samples_are_as_many_as_time_allows(step_seconds: float, expected: tuple[int, int]) -> None:
    assert taken(Sampling(), step_seconds) == expected


def test_fewer_samples_where_asked() -> None:
    assert taken(Sampling(samples=4), 0.1) == (5, 4)


def test_samples_are_told_of_every_three_seconds_and_not_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, said = itertools.count(step=0.25), list[str]()
    clock = SimpleNamespace(monotonic=lambda: next(now), perf_counter=time.perf_counter)
    monkeypatch.setattr(measure_module, "time", clock)
    captured = capture(MLP, 4, OptimizerChoice(), 0)
    found = measure_module.measure(captured, 1, Sampling(), said.append)
    assert found.samples == 45
    # The clock is asked twice for each sample, which so takes half a second.
    assert [int(one.split()[2].rstrip(",")) for one in said] == [*range(3, 46, 6)]


def test_the_peak_inside_an_operator_is_of_its_own_changes_only() -> None:
    spans = [Span("conv", 1.0, 2.0), Span("relu", 2.5, 3.0), Span("view", 4.0, 4.1)]
    changes = [
        (2.9, 64), (0.5, 9999), (1.1, 100), (1.2, 50), (1.3, -50), (1.4, 30), (1.9, -100),
        (2.2, -7000), (2.6, -30),
    ]  # fmt: skip
    # A release between two operators counts for neither; a release inside one makes room there.
    assert peaks_inside(spans, changes) == {"conv": 150, "relu": 34, "view": 0}


def test_a_trace_is_read_by_its_marks() -> None:
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M"},
        {"cat": "user_annotation", "name": "operator:mm", "ts": 5.0, "dur": 2.5},
        {"cat": "user_annotation", "name": "somebody else's", "ts": 5.0, "dur": 2.5},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 5.5, "dur": 1.0},
        {"cat": "cpu_instant_event", "name": "[memory]", "ts": 6.0, "args": {"Bytes": 40}},
    ]
    assert read_trace(events) == ([Span("mm", 5.0, 7.5)], [(6.0, 40)])


def test_workspace_is_what_goes_beyond_the_output(measured: OperatorGraph) -> None:
    """Dropout makes a mask beside its two results; a matrix product needs no workspace."""
    of_type = {
        kind: [i for i, name in enumerate(measured.types) if name == kind]
        for kind in ("aten.native_dropout.default", "aten.mm.default", "parameter")
    }
    batch, width = 256, 512
    for i in of_type["aten.native_dropout.default"]:
        assert batch * width <= measured.workspace_bytes[i] <= 8 * batch * width
    assert not measured.workspace_bytes[of_type["parameter"]].any()
    assert not measured.workspace_bytes[of_type["aten.mm.default"]].any()
