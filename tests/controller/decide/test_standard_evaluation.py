"""Tests that `controller evaluate` profiles a step that no device holds, on several devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.controller.cli import main
from placewire.controller.decide.measured.standard_evaluation import Evaluation, evaluate
from placewire.controller.decide.variants import variants_of
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.job import PlacedJob
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.placement import load_placement
from tests.controller.plans import plan, plan_document

MODEL = "placewire.examples.models.mlp:training_step"
ASKED = ["evaluate", MODEL, "--batch", "1024", "--small-batches", "64", "128", "--devices", "3"]


@pytest.mark.thorough
def test_what_one_device_cannot_hold_is_measured_on_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "graph.json.gz"
    more = ["--device-memory", "28MiB", "--samples", "2", "--out", str(out)]
    with pytest.raises(SystemExit) as done:
        main([*ASKED, *more])
    said = capsys.readouterr().err
    assert done.value.code == 0, said
    assert "run: 2 ranks, 8 steps of batch 1024" in said
    assert "memory: the estimate is off by" in said
    graph = load_graph(out)
    dropout = [i for i, kind in enumerate(graph.types) if kind == "aten.native_dropout.default"]
    # Beside its result, the operator makes a mask of at least one byte per element.
    assert (graph.workspace_bytes[dropout] >= 1024 * 512).all()
    assert (graph.seconds[dropout] > 0).all()
    assert graph.notes["estimated_from_batches"] == [64, 128] and graph.notes["batch"] == 1024


@pytest.mark.thorough
async def test_another_placer_measures_and_a_plan_takes_the_profile(tmp_path: Path) -> None:
    """A plan whose job gives the file is decided on it: nothing is measured again."""
    said: list[str] = []
    asked = Evaluation(MODEL, 1024, (64, 128), 3, 28 * 2**20, samples=2, placer="m-topo")
    file = await evaluate(asked, tmp_path, said.append)
    placed = load_placement(tmp_path / "placement.json")
    assert placed.engine == "m-topo" and len(placed.devices_used) == 3
    document = plan_document()
    document["job"] |= {"batch": 1024, "profile": str(file)}
    of = plan(document)
    assert isinstance(of.job, PlacedJob)
    (variant,) = await variants_of(
        of, of.job, tmp_path / "plan.yaml", NoLauncher(), tmp_path, said.append
    )
    assert variant.graph_file == file and said[-1].endswith(f"from {file}")


@pytest.mark.thorough
@pytest.mark.parametrize(("asked", "length"), [([], 12), (["--bucket", "5"], 5)])
def test_a_bucket_of_a_model_is_measured_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], length: int
) -> None:
    out = tmp_path / "graph.json"
    words = [
        "evaluate", "tests.models.lengths:wide", "--batch", "8", "--small-batches", "2", "4",
        "--devices", "2", "--device-memory", "7MiB", "--samples", "2", "--out", str(out), *asked,
    ]  # fmt: skip
    with pytest.raises(SystemExit) as done:
        main(words)
    said = capsys.readouterr().err
    assert done.value.code == 0, said
    assert "run: 2 ranks, 8 steps of batch 8" in said
    graph = load_graph(out)
    assert graph.notes["bucket"] == str(length)
    # The numbers of words, int64.
    assert graph.tensor_bytes[graph.output_tensors(graph.index_of["input_0"])].tolist() == [
        8 * length * 8
    ]


def test_too_little_memory_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        out = str(tmp_path / "graph.json")
        main([*ASKED, "--samples", "2", "--device-memory", "1MiB", "--out", out])
    assert done.value.code == 4
    assert "add devices or memory" in capsys.readouterr().err
