"""Captures of the forward pass alone: outputs of evaluation mode, to the last bit, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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
from placewire.optimizer.graph.halves import forward_half
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.profile.devices import DEVICES
from placewire.optimizer.profile.modelled import modelled_seconds
from placewire.optimizer.profile.straight import StraightStep

BATCH, SEED = 4, 3
SEVERAL = "tests.models.inferred:several"
SERVERS = ["--servers", "2", "--nics", "1", "--rate", "10Gbit", "--device-memory", "16GiB"]
SERVERS += ["--device-type", "rtx4080s"]


def inference(path: str, **more: Any) -> CapturedStep:
    given = {"optimizer": OptimizerChoice(), "seed": SEED, **more}
    return captured_step(CaptureOptions(path, BATCH, inference=True, **given))


@pytest.fixture(scope="module")
def several() -> CapturedStep:
    return inference(SEVERAL)


def outputs_of(captured: CapturedStep, number: int) -> tuple[torch.Tensor, ...]:
    program = StraightStep(captured)
    found: tuple[torch.Tensor, ...] = program.run(program.load(number))
    return found


@pytest.mark.parametrize(
    "path",
    [
        "tests.models.small:mlp",
        "tests.models.small:gpt2",
        "tests.models.inferred:rectified",
        pytest.param("tests.models.small:bert", marks=pytest.mark.slow),
        pytest.param("tests.models.small:vgg_batch_norm", marks=pytest.mark.slow),
        pytest.param("tests.models.small:inception_v3", marks=pytest.mark.slow),
        pytest.param("tests.models.small:resnet50", marks=pytest.mark.slow),
    ],
)
def test_outputs_are_those_of_evaluation_mode_to_the_last_bit(path: str) -> None:
    assert_infers_alike(inference(path), path)


def test_several_outputs_are_those_of_evaluation_mode(several: CapturedStep) -> None:
    assert_infers_alike(several, SEVERAL)


def assert_infers_alike(captured: CapturedStep, path: str) -> None:
    step = load_training_step(path, BATCH, SEED)
    assert not captured.code.writers and captured.device.type == "cpu"
    assert not [kind for kind in captured.operators.types if "dropout" in kind]
    for number in (0, 1):
        *inputs, _ = step.batches(number)
        with torch.no_grad():
            expected = step.model.eval()(*inputs)
        listed = [one for one in tree_leaves(expected) if one is not None]
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


def test_outputs_are_held_until_the_step_ends_and_nothing_is_trained(
    several: CapturedStep,
) -> None:
    captured, graph, code = several, several.operators, several.code
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
    forward = forward_half(graph)
    assert forward is not None and forward.all(), "all of it is forward"


def test_an_inference_is_decomposed_too() -> None:
    path = "tests.models.precise:gpt2"
    fine, step = inference(path, decompose=True), load_training_step(path, BATCH, SEED)
    fused = ("addmm", "layer_norm", "softmax", "gelu", "attention")
    assert not [kind for kind in fine.operators.types if any(one in kind for one in fused)]
    *inputs, _ = step.batches(0)
    with torch.no_grad():
        expected = step.model.eval()(*inputs)
    for a, b in zip(outputs_of(fine, 0), tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        (SEVERAL, {"accumulate": 2}, "drop --accumulate"),
        (SEVERAL, {"shards": 2}, "drop --shards"),
        (SEVERAL, {"recompute": "all"}, "drop --recompute"),
        ("tests.models.inferred:returns_number", {}, "output 2 is 3, and no tensor"),
        ("tests.models.inferred:returns_nothing", {}, "returns no tensor"),
        (
            "tests.models.inferred:passes_on",
            {},
            "passes_on: output 2 is input 0 as it is, which the model only passes on",
        ),
        ("tests.models.inferred:passes_parameter_on", {}, "output 2 is parameter scale as it is"),
        (SEVERAL, {"optimizer": OptimizerChoice(clip_norm=1.0)}, "drop --optimizer"),
    ],
)
def test_what_is_no_inference_is_refused(path: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        inference(path, **more)


@pytest.mark.parametrize("counts", [["auto"], ["1", "2"]])
def test_an_inference_that_is_to_be_cut_is_refused_at_once(
    counts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [SEVERAL, "--batch", "4", "--inference", "--out", str(tmp_path / "step.json.gz")]
    assert main(["capture", *words, "--accumulate", *counts]) == 3
    said = capsys.readouterr().err
    assert "drop --accumulate" in said and "left out" not in said
    assert not [*tmp_path.iterdir()]


def test_an_inference_goes_through_every_command(
    several: CapturedStep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured by running it, and modelled."""
    out, placement = str(tmp_path / "step.json.gz"), str(tmp_path / "placement.json")
    words = [SEVERAL, "--batch", "4", "--inference", "--out", out]
    assert main(["profile", *words, "--samples", "3", "--seconds", "1"]) == 0
    measured = load_graph(Path(out))
    assert measured.seconds.sum() > 0
    assert measured.workspace_bytes[measured.index_of[measured.notes["outputs"][0]]] == 0
    assert measured.structure_hash == several.operators.structure_hash
    assert main(["profile", out, "--device", "rtx4080s", "--out", out]) == 0
    assert main(["solve", out, *SERVERS, "--time-limit", "2", "--out", placement]) == 0
    assert main(["check", out, placement]) == 0
    assert "the placement holds" in capsys.readouterr().out
    assert main(["explain", placement, "--graph", out]) == 0
    assert "critical path" in capsys.readouterr().out
    assert main(["capture", *words, "--optimizer", '{"lr": 0.1}']) == 3
    assert "drop --optimizer" in capsys.readouterr().err


def test_half_an_inference_has_half_the_bytes_and_ties_stay() -> None:
    whole, half = (
        inference("tests.models.small:gpt2"),
        inference("tests.models.small:gpt2", half=True),
    )
    assert half.operators.notes["half"] and "half" not in whole.operators.notes
    assert half.operators.types == whole.operators.types
    # The input is words, which are whole numbers, as are the buffer's positions.
    held = np.array([kind not in {"input", "buffer"} for kind in half.operators.types])
    bytes_of_whole = whole.operators.weight_bytes[held]
    assert (2 * half.operators.weight_bytes[held] == bytes_of_whole).all() and bytes_of_whole.any()
    numbers = [one for one in outputs_of(half, 0) if one.is_floating_point()]
    assert numbers and all(one.dtype == torch.float16 for one in numbers)


def test_half_of_a_training_step_is_refused(tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "g.json")
    command = ["capture", "tests.models.small:mlp", "--batch", "4", "--half", "--out", out]
    assert main(command) == 3
    assert "--half is of an inference: add --inference" in capsys.readouterr().err


def test_a_device_computes_products_in_half_precision_by_a_peak_of_its_own() -> None:
    """16 MFLOP of a product and as many of an addition, without traffic."""
    rows = [OperatorRow("p", "aten.mm.default", {}, flops=16 * 10**6),
            OperatorRow("a", "aten.add.Tensor", {}, flops=16 * 10**6)]  # fmt: skip
    tensors = [TensorRow("p", ("a",), 8)]
    for name in ("t4", "p4", "p100"):
        device = DEVICES[name]
        notes: tuple[dict[str, Any], ...] = ({}, {"half": True})
        single, half = (
            modelled_seconds(build_graph(rows, tensors, notes=one), device) - device.launch_seconds
            for one in notes
        )
        assert single[0] / half[0] == pytest.approx(device.half_flops / device.peak_flops)
        assert single[1] == half[1] > 0
