"""Captures of the forward pass alone: outputs of evaluation mode, to the last bit, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import captured_step
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.profile.straight import StraightStep

BATCH, SEED = 4, 3
SEVERAL = "tests.models.inferred:several"
SERVERS = ["--servers", "2", "--nics", "1", "--rate", "10Gbit", "--device-memory", "16GiB"]


def inference(path: str, **more: Any) -> CapturedStep:
    options = CaptureOptions(path, BATCH, OptimizerChoice(), SEED, inference=True, **more)
    return captured_step(options)


def outputs_of(captured: CapturedStep, number: int) -> tuple[torch.Tensor, ...]:
    program = StraightStep(captured)
    found: tuple[torch.Tensor, ...] = program.run(program.load(number))
    return found


@pytest.mark.parametrize(
    "path",
    [
        "tests.models.small:mlp",
        "tests.models.small:gpt2",
        SEVERAL,
        pytest.param("tests.models.small:bert", marks=pytest.mark.slow),
        pytest.param("tests.models.small:vgg_batch_norm", marks=pytest.mark.slow),
        pytest.param("tests.models.small:inception_v3", marks=pytest.mark.slow),
        pytest.param("tests.models.small:resnet50", marks=pytest.mark.slow),
    ],
)
def test_outputs_are_those_of_evaluation_mode_to_the_last_bit(path: str) -> None:
    captured, step = inference(path), load_training_step(path, BATCH, SEED)
    assert not captured.code.writers
    assert not [kind for kind in captured.operators.types if "dropout" in kind]
    for number in (0, 1):
        *inputs, _ = step.batches(number)
        with torch.no_grad():
            expected = step.model.eval()(*inputs)
        listed = tree_leaves(expected)
        found = outputs_of(captured, number)
        assert len(found) == len(listed)
        assert all(torch.equal(a, b) for a, b in zip(found, listed, strict=True))


def test_a_model_that_returns_its_loss_is_inferred_with_it() -> None:
    path = "tests.models.small:two_towers"
    captured, step = inference(path), load_training_step(path, BATCH, SEED)
    assert step.loss is None
    with torch.no_grad():
        (found,) = outputs_of(captured, 0)
        assert found.item() == step.model.eval()(*step.batches(0)).item()


def test_outputs_are_held_until_the_step_ends_and_nothing_is_trained() -> None:
    captured = inference(SEVERAL)
    graph, code = captured.operators, captured.code
    assert code.loss == "" and len(code.outputs) == 2
    assert "loss" not in graph.notes and "optimizer" not in graph.notes
    assert graph.notes["inference"] is True and graph.notes["outputs"] == [*code.outputs]
    values = sum(value.nbytes for value in captured.values.values())
    scores = BATCH * 4 * 4
    assert graph.weight_bytes.sum() == values + captured.batches(0)[0].nbytes + scores
    scored = graph.index_of[code.outputs[0]]
    assert graph.weight_bytes[scored] == scores and graph.activation_bytes[scored] == 0
    assert not [one for one in graph.types if "backward" in one or one == "update"]
    assert len(captured.batches(0)) == 1, "the target is no input"


def test_an_inference_is_decomposed_too() -> None:
    path = "tests.models.precise:gpt2"
    whole, fine = inference(path), inference(path, decompose=True)
    assert fine.operators.operator_count > whole.operators.operator_count
    for a, b in zip(outputs_of(whole, 0), outputs_of(fine, 0), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        (SEVERAL, {"accumulate": 2}, "drop --accumulate"),
        (SEVERAL, {"shards": 2}, "drop --shards"),
        (SEVERAL, {"recompute": "all"}, "drop --recompute"),
        ("tests.models.inferred:returns_number", {}, "output 2 is 3, and no tensor"),
        ("tests.models.inferred:returns_nothing", {}, "returns no tensor"),
        ("tests.models.inferred:passes_on", {}, "only passes on"),
    ],
)
def test_what_is_no_inference_is_refused(path: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        inference(path, **more)


def test_an_inference_goes_through_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured by running it, and modelled."""
    out, placement = str(tmp_path / "step.json.gz"), str(tmp_path / "placement.json")
    words = [SEVERAL, "--batch", "4", "--inference", "--out", out]
    assert main(["profile", *words, "--samples", "3", "--seconds", "1"]) == 0
    measured = load_graph(Path(out))
    assert measured.seconds.sum() > 0
    assert measured.workspace_bytes[measured.index_of[measured.notes["outputs"][0]]] == 0
    assert main(["capture", *words]) == 0
    assert load_graph(Path(out)).structure_hash == measured.structure_hash
    assert main(["profile", *words, "--device", "rtx4080s"]) == 0
    assert main(["solve", out, *SERVERS, "--moves", "300", "--out", placement]) == 0
    assert main(["check", out, placement]) == 0
    assert "the placement holds" in capsys.readouterr().out
    assert main(["explain", placement, "--graph", out]) == 0
    assert "critical path" in capsys.readouterr().out
    assert main(["capture", *words, "--optimizer", '{"lr": 0.1}']) == 3
    assert "drop --optimizer" in capsys.readouterr().err
