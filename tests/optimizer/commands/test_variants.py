"""A step in several numbers of micro-batches: profiled into files, of which `solve` takes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.placement import Placement, load_placement
from tests.optimizer.cases import graph

MLP = "placewire.examples.models.mlp:training_step"
SERVERS = ["--servers", "2", "--nics", "1", "--rate", "10Gbit", "--device-memory", "16GiB"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("variants")
    out = str(made / "step.json.gz")
    cut = ["--accumulate", "1", "2", "--shards", "1", "2"]
    assert main(["profile", MLP, "--batch", "8", *cut, "--device", "rtx4080s", "--out", out]) == 0
    return made


def solve(folder: Path, out: Path, *more: str) -> int:
    files = sorted(map(str, folder.glob("step.*.json.gz")))
    return main(["solve", *files, *SERVERS, "--moves", "300", "--out", str(out), *more])


def test_each_number_gets_a_file_with_modelled_times(folder: Path) -> None:
    names = ["step.1x1.json.gz", "step.1x2.json.gz", "step.2x1.json.gz", "step.2x2.json.gz"]
    assert sorted(file.name for file in folder.iterdir()) == names
    for name in names:
        one = load_graph(folder / name)
        count, shards = name.split(".")[1].split("x")
        notes = one.notes["accumulate"], one.notes["shards"]
        assert notes == (int(count), int(shards))
        assert one.device_types == ("rtx4080s",) and one.seconds.sum() > 0
        assert one.micro_batch.max() == (-1 if count == "1" else 1)


def test_one_number_gets_the_file_that_was_named(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    for twice in (["2"], ["2", "2"]):
        words = ["capture", MLP, "--batch", "4", "--accumulate", *twice, "--out", str(out)]
        assert main(words) == 0
        assert [file.name for file in tmp_path.iterdir()] == ["step.json"]
        assert load_graph(out).notes["accumulate"] == 2
        out.unlink()


def test_capture_writes_a_file_for_each_number_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "step.v1.json")
    assert main(["capture", MLP, "--batch", "4", "--accumulate", "1", "4", "--out", out]) == 0
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["step.1x1.v1.json", "step.4x1.v1.json"]
    assert [load_graph(file).notes["accumulate"] for file in files] == [1, 4]
    assert all(str(file) in capsys.readouterr().err for file in files[:1])


def test_auto_writes_each_number_that_divides_the_batch(tmp_path: Path) -> None:
    out = str(tmp_path / "step.json")
    words = [MLP, "--batch", "4", "--accumulate", "auto", "--out", out]
    assert main(["capture", *words]) == 0
    names = ["step.1x1.json", "step.2x1.json", "step.4x1.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert main(["profile", *words, "--device", "rtx4080s", "--shards", "1", "2"]) == 0
    more = [name.replace("x1", "x2") for name in names]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(names + more)


def test_auto_leaves_a_step_whole_that_needs_its_whole_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "placewire.examples.models.resnet50:training_step_small"
    out = str(tmp_path / "step.json")
    words = ["capture", model, "--batch", "4", "--accumulate", "auto", "--shards", "1", "2"]
    assert main([*words, "--out", out]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step.1x1.json", "step.1x2.json"]
    assert capsys.readouterr().err.count("is not cut into micro-batches") == 1


TABLE = """
import torch
from torch import nn
from placewire.optimizer.capture.protocol import TrainingStep

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, table):
        return ((self.layer(x) + table[:8]) ** 2).mean()

def training_step(batch, seed):
    inputs = torch.randn(batch, 8), torch.randn(64)
    return TrainingStep(Model(), inputs, lambda number: inputs)
"""


def test_auto_leaves_out_what_the_step_cannot_be_cut_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model_with_a_table.py").write_text(TABLE)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["model_with_a_table:training_step", "--batch", "4", "--out", str(tmp_path / "s.json")]
    assert main(["capture", *words, "--accumulate", "auto", "auto"]) == 0
    assert [file.name for file in tmp_path.glob("*.json")] == ["s.1x1.json"]
    assert capsys.readouterr().err.count("left out: ") == 2
    assert main(["capture", *words, "--accumulate", "2"]) == 3


def test_small_batches_are_cut_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", MLP, "--batch", "16", "--small-batches", "2", "4", "--accumulate", "4"]
    assert main([*words, "--out", str(tmp_path / "step.json")]) == 3
    assert "--small-batches 2 cannot be cut into --accumulate 4" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["capture", "profile"])
def test_a_number_that_does_not_divide_the_batch_is_refused_before_the_first_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = [command, MLP, "--batch", "6", "--out", str(tmp_path / "step.json")]
    assert main([*words, "--accumulate", "1", "4"]) == 3
    told = capsys.readouterr().err
    assert "--batch 6 cannot be cut into --accumulate 4" in told and "capt" not in told
    assert main([*words, "--accumulate", "auto", "2"]) == 3
    assert "auto alone" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def taken(folder: Path, placement: Placement) -> Path:
    """The first of the files with the placement's graph."""
    return next(
        file
        for file in sorted(folder.glob("step.*.json.gz"))
        if load_graph(file).structure_hash == placement.structure_hash
    )


def test_solve_takes_one_shows_all_and_check_accepts_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "placement.json"
    assert solve(folder, out) == 0
    said = capsys.readouterr()
    placement = load_placement(out)
    # The mlp's weights are too small to be cut, and have replicas for several micro-batches.
    assert f"{folder}/step.1x2.json.gz: left out, because it is the same step as" in said.err
    names = ["1 micro-batch", "2 micro-batches", "2 micro-batches, 2 shards"]
    assert [one.name for one in placement.variants] == names
    rows = [line for line in said.out.splitlines() if "micro-batch" in line]
    assert [row.endswith(", taken") for row in rows].count(True) == 1 and len(rows) == 3
    (own,) = [v for v in placement.variants if v.structure_hash == placement.structure_hash]
    assert own.step_seconds == placement.step_seconds
    assert own.bound_seconds == placement.bound_seconds
    assert f"taken: {own.name}" in said.err
    assert "no placement of these variants can be below" in said.out
    graph_file = taken(folder, placement)
    assert main(["check", str(graph_file), str(out)]) == 0
    other = next(file for file in folder.glob("step.*x1.json.gz") if file != graph_file)
    assert main(["check", str(other), str(out)]) != 0
    capsys.readouterr()
    assert main(["show", str(out)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "micro-batch" in line] == rows


def test_json_is_the_placement_and_nothing_else(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "placement.json"
    assert solve(folder, out, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(out.read_text())
    assert [one["operators"] for one in said["variants"]] == [
        load_graph(folder / f"step.{cut}.json.gz").operator_count for cut in ("1x1", "2x1", "2x2")
    ]


def test_all_sharings_have_the_placement_of_one_variant(folder: Path, tmp_path: Path) -> None:
    out, each = tmp_path / "placement.json", tmp_path / "each"
    assert solve(folder, out, "--sharing", "auto", "--out-each", str(each)) == 0
    best = load_placement(out)
    placements = [load_placement(file) for file in each.iterdir()]
    assert len(placements) == 5
    for one in placements:
        assert one.structure_hash == best.structure_hash and len(one.variants) == 3
        (own,) = [v for v in one.variants if v.structure_hash == one.structure_hash]
        assert own.step_seconds == one.step_seconds
    assert main(["check", str(taken(folder, best)), str(out)]) == 0


def test_a_search_begins_with_a_placement_that_is_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    words = ["solve", str(folder / "step.2x1.json.gz"), *SERVERS]
    assert main([*words, "--moves", "3000", "--seed", "3", "--out", str(first)]) == 0
    start = ["--start", str(first)]
    assert main([*words, "--moves", "1", *start, "--out", str(again)]) == 0
    assert load_placement(again).step_seconds <= load_placement(first).step_seconds * 1.001
    capsys.readouterr()
    other = ["solve", str(folder / "step.1x1.json.gz"), *SERVERS, *start]
    assert main(other) == 3
    assert "it is a placement of another graph" in capsys.readouterr().err
    assert main([*words[:2], "--servers", "3", *SERVERS[2:], *start]) == 3
    assert "it is a placement on other devices or rails" in capsys.readouterr().err
    assert main([*words[:2], "--servers", "2", "--nics", "2", *SERVERS[4:], *start]) == 3
    assert "it is a placement on other devices or rails" in capsys.readouterr().err
    document = json.loads(first.read_text())
    document["order"] = {device: [] for device in document["order"]}
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    assert main([*words, "--start", str(broken)]) == 3
    assert f"{broken}: it cannot run: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--engine", "heft", *start])
    assert "--start is for engine auto" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        solve(folder, again, *start)
    assert stopped.value.code == 2
    assert "--start is a placement of one graph" in capsys.readouterr().err


def test_one_graph_has_no_variants(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "placement.json"
    alone = [str(folder / "step.1x1.json.gz")]
    # The same file again, and the same step in another, are no variants of it.
    for files in (alone, alone * 2, [*alone, str(folder / "step.1x2.json.gz")]):
        assert main(["solve", *files, *SERVERS, "--engine", "heft", "--out", str(out)]) == 0
        assert load_placement(out).variants == ()


def test_a_variant_that_fits_nowhere_is_left_out_and_another_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 1000)], weight_bytes={"A": 10**12})
    small = graph({"A": 1.0, "B": 1.0, "C": 1.0}, [("A", ["B", "C"], 1000)])
    files = [tmp_path / name for name in ("large.json", "small.json")]
    for file, made in zip(files, (large, small), strict=True):
        save_graph(made, file)
    out = tmp_path / "placement.json"
    assert main(["solve", *map(str, files), *SERVERS, "--moves", "50", "--out", str(out)]) == 0
    assert f"{files[0]}: weights, gradients" in capsys.readouterr().err
    assert main(["check", str(files[1]), str(out)]) == 0
    assert [one.name for one in load_placement(out).variants] == [str(files[1])]


def test_graphs_of_other_steps_exit_3(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    save_graph(graph({"A": 1.0}, []), other)
    one = str(folder / "step.1x1.json.gz")
    assert main(["solve", one, str(other), *SERVERS]) == 3
    assert f"{one} and {other} are no variants of one step: model is" in capsys.readouterr().err


CASES = {
    "a cut graph": (
        ["GRAPH", "--device", "h200", "--out", "o", "--accumulate", "2"],
        "cut already",
    ),
    "shards of one": (["GRAPH", "--device", "h200", "--out", "o", "--shards", "2"], "drop --accum"),
    "exchange of several": (
        ["m:f", "--batch", "4", "--exchange", "--accumulate", "1", "2"],
        "one number of micro-batches and of shards",
    ),
    "exchange of shards": (
        ["m:f", "--batch", "4", "--exchange", "--shards", "1", "2"],
        "one number of micro-batches and of shards",
    ),
    "exchange of modelled": (
        ["m:f", "--batch", "4", "--exchange", "--device", "h200"],
        "drop --out, --device and --small-batches",
    ),
    "modelled small": (
        ["m:f", "--batch", "4", "--device", "h200", "--small-batches", "1", "2", "--out", "o"],
        "give one of them",
    ),
    "a model against": (
        ["m:f", "--batch", "4", "--device", "h200", "--against", "cpu", "--out", "o"],
        "--against needs a graph file, and m:f is none",
    ),
    "modelled without": (["m:f", "--device", "h200"], "to model the times of m:f give --batch"),
    "measured without": (["m:f", "--batch", "4"], "to measure the times of m:f give --out"),
    "recorded model": (["m:f", "--recorded", "t", "--out", "o"], "--recorded is for a graph file"),
    "no micro-batches": (["m:f", "--accumulate", "0"], "of at least 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_go_together_exits_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = CASES[name]
    graph_file = tmp_path / "graph.json"
    save_graph(graph({"A": 1.0}, []), graph_file)
    given = [str(graph_file) if word == "GRAPH" else word for word in words]
    with pytest.raises(SystemExit) as stopped:
        main(["profile", *given])
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert [file.name for file in tmp_path.iterdir()] == ["graph.json"]
