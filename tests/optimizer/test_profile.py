"""Profile: are measured times kept under what they depend on, and used as measured?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from optimizer.graph import OperatorGraph, OperatorRow, build_graph, load_graph, save_graph
from optimizer.profile.__main__ import main
from optimizer.profile.scale import with_scaled_seconds

MLP = "examples.models.mlp:training_step"


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
    assert notes["sum_of_medians_seconds"] == pytest.approx(measured.seconds.sum())
    # Generous: other tests may run meanwhile.
    assert 0.5 < notes["sum_of_medians_seconds"] / notes["whole_step_seconds"] < 1.5
    assert notes["threads"] == 1 and notes["samples"] == 5
    assert notes["processor"] and notes["torch"].startswith("2.13")
    assert notes["loss"] in measured.ids


def test_the_same_question_is_answered_from_the_cache(
    folder: Path, measured: OperatorGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    again = profile(folder, "--device-type", "cpu:test")
    assert np.array_equal(again.seconds, measured.seconds)
    assert again.profile_digest == measured.profile_digest
    assert again.structure_hash == measured.structure_hash
    printed = capsys.readouterr()
    assert "profile: from " in printed.err and printed.out == ""


@pytest.mark.parametrize("more", [("--device-type", "cpu:other"), ("--batch", "128")])
def test_another_question_is_measured(
    folder: Path, measured: OperatorGraph, more: tuple[str, ...]
) -> None:
    before = set((folder / "cache").iterdir())
    profile(folder, "--device-type", "cpu:test", *more)
    assert len(set((folder / "cache").iterdir()) - before) == 1


@pytest.mark.parametrize("damage", ["", "shifted"])
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


def test_what_cannot_be_captured_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["hard_models:branches", "--batch", "4", "--out", str(tmp_path / "g.json")]
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
    with pytest.raises(ValueError, match="must be positive"):
        with_scaled_seconds(graph, 0)
    two = graph.with_seconds({"cpu": graph.seconds[:, 0], "gpu": graph.seconds[:, 0]})
    with pytest.raises(ValueError, match="one only"):
        with_scaled_seconds(two, 0.1, "fast")
