"""Capture: is the operator graph the step that the user wrote?"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.joint import joint_graph
from placewire.optimizer.capture.protocol import ModelWithLoss, load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.profile.straight import StraightStep
from tests.models import hard as hard_models
from tests.paths import ROOT

ADAMW = OptimizerChoice("adamw", 1e-3)
ALEXNET = "placewire.examples.models.alexnet:training_step"
MLP = "placewire.examples.models.mlp:training_step"


@pytest.fixture(scope="module")
def alexnet() -> CapturedStep:
    return capture(ALEXNET, 4, ADAMW, 0)


@pytest.fixture(scope="module")
def hard() -> CapturedStep:
    return capture("tests.models.hard:training_step", 3, ADAMW, 0)


def of_type(graph: OperatorGraph, name: str) -> list[int]:
    return [i for i, kind in enumerate(graph.types) if kind == name]


def ancestors(graph: OperatorGraph) -> list[set[int]]:
    above: list[set[int]] = [set() for _ in graph.ids]
    for i in graph.topological_order.tolist():
        for tensor in graph.input_tensors(i).tolist():
            producer = int(graph.tensor_producer[tensor])
            above[i] |= above[producer] | {producer}
    return above


def test_alexnet_has_one_update_per_parameter(alexnet: CapturedStep) -> None:
    graph = alexnet.operators
    parameters, updates = of_type(graph, "parameter"), of_type(graph, "update")
    assert len(parameters) == len(updates) == 16
    assert len(of_type(graph, "input")) == 2
    assert alexnet.loss in graph.ids
    assert sum(v.numel() for v in alexnet.code.parameters.values()) == 23_272_266
    for update in updates:
        producers = {graph.ids[graph.tensor_producer[t]] for t in graph.input_tensors(update)}
        assert alexnet.code.writers[graph.ids[update]] in producers
        assert len(graph.output_tensors(update)) == 0


def test_weight_bytes_are_parameters_optimizer_state_and_inputs(alexnet: CapturedStep) -> None:
    parameters = 23_272_266 * 4
    inputs = sum(x.nbytes for x in alexnet.batches(0))
    assert alexnet.operators.weight_bytes.sum() == 3 * parameters + inputs
    for options, factor in (({}, 1), ({"momentum": 0.9}, 2)):
        sgd = capture(MLP, 2, OptimizerChoice("sgd", 0.1, options), 0)
        held = sum(v.nbytes for v in sgd.code.parameters.values())
        held_inputs = sum(x.nbytes for x in sgd.batches(0))
        assert sgd.operators.weight_bytes.sum() == factor * held + held_inputs


def test_convolution_backward_is_split(alexnet: CapturedStep) -> None:
    masks = [
        tuple(node.args[-1])  # type: ignore[arg-type]
        for node in alexnet.analysis.nodes
        if node.target is torch.ops.aten.convolution_backward.default
    ]
    # Five convolutions; the first needs no gradient of its input.
    assert sorted(masks) == 5 * [(False, True, True)] + 4 * [(True, False, False)]


def test_split_convolution_backward_gives_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    x, w, g = (
        torch.randn(s, generator=generator) for s in ((4, 8, 9, 9), (6, 8, 3, 3), (4, 6, 9, 9))
    )

    def backward(mask: list[bool]) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
            g, x, w, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask
        )
        return result

    whole = backward([True, True, True])
    parts = backward([True, False, False])[:1] + backward([False, True, True])[1:]
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_tied_weights_are_one_parameter_with_one_update(hard: CapturedStep) -> None:
    ids = hard.operators.ids
    assert [i for i in ids if "words" in i or "out_weight" in i] == [
        "parameter_model_words_weight",
        "update_model_words_weight",
    ]
    assert not any("unused" in i for i in ids)
    assert "parameter_model_fixed" in ids and "update_model_fixed" not in ids


@pytest.mark.parametrize(
    "choice",
    [
        ADAMW,
        OptimizerChoice("adamw", 2e-3, {"beta1": 0.8, "weight_decay": 0.3, "eps": 1e-6}),
        OptimizerChoice("sgd", 0.1),
        OptimizerChoice("sgd", 0.1, {"momentum": 0.9, "nesterov": 1.0, "weight_decay": 0.01}),
    ],
    ids=["adamw", "adamw with options", "sgd", "sgd with momentum"],
)
def test_captured_step_trains_like_eager(choice: OptimizerChoice) -> None:
    path = "tests.models.hard:without_dropout"
    captured = capture(path, 3, choice, 5)
    step = load_training_step(path, 3, 5)
    assert step.loss is not None
    model = ModelWithLoss(step.model, step.loss)
    program = StraightStep(captured)
    optimizer = eager_optimizer(choice, model)
    for number in range(4):
        inputs = step.batches(number)
        optimizer.zero_grad()
        model(*inputs).backward()
        optimizer.step()
        program.run(program.load(number))
    expected = {
        name.replace(".", "_"): value.detach()
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    for identifier, value in captured.values.items():
        name = identifier.split("_", 1)[1]
        torch.testing.assert_close(value, expected[name], rtol=2e-4, atol=2e-5, msg=identifier)
    start = capture(path, 3, choice, 5).values["parameter_model_words_weight"]
    moved = captured.values["parameter_model_words_weight"] - start
    assert moved.abs().max() > 1e-3


def eager_optimizer(choice: OptimizerChoice, model: torch.nn.Module) -> torch.optim.Optimizer:
    options = dict(choice.all_options)
    if choice.name == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=choice.lr, momentum=options["momentum"],
            weight_decay=options["weight_decay"], nesterov=bool(options["nesterov"]),
        )  # fmt: skip
    return torch.optim.AdamW(
        model.parameters(), lr=choice.lr, betas=(options["beta1"], options["beta2"]),
        eps=options["eps"], weight_decay=options["weight_decay"],
    )  # fmt: skip


def test_storages_are_counted_not_outputs(alexnet: CapturedStep) -> None:
    graph = alexnet.operators
    for kind in ("aten.t.default", "aten.view.default", "parameter"):
        assert of_type(graph, kind)
        assert graph.activation_bytes[of_type(graph, kind)].sum() == 0
    storages = {
        node.meta["val"].untyped_storage()._cdata: node.meta["val"].untyped_storage().nbytes()
        for node in alexnet.analysis.nodes
        if isinstance(node.meta["val"], torch.Tensor) and node.name not in alexnet.code.parameters
    }
    weights = {
        node.meta["val"].untyped_storage()._cdata
        for node in alexnet.analysis.nodes
        if node.op == "placeholder"
    }
    expected = sum(size for storage, size in storages.items() if storage not in weights)
    assert graph.activation_bytes.sum() == expected


def test_tuples_and_writers_share_a_device(hard: CapturedStep) -> None:
    graph = hard.operators
    source, target, tensor = graph.edges
    for a, b, e in zip(source.tolist(), target.tolist(), tensor.tolist(), strict=True):
        if graph.types[b] == "getitem":
            assert graph.tensor_bytes[e] == 0
            assert graph.colocation[a] == graph.colocation[b] >= 0
    for writer, written in hard.code.writers.items():
        i, j = graph.index_of[writer], graph.index_of[written]
        assert graph.colocation[i] == graph.colocation[j] >= 0
    copies = {i for i in hard.code.writers if i.startswith("copy_")}
    assert copies == {
        f"copy_model_norm_{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


@pytest.mark.parametrize("name", ["alexnet", "hard"])
def test_all_readers_of_a_parameter_precede_its_update(
    name: str, request: pytest.FixtureRequest
) -> None:
    captured: CapturedStep = request.getfixturevalue(name)
    graph, above = captured.operators, ancestors(captured.operators)
    for writer in captured.code.writers:
        update = graph.index_of[writer]
        for member in captured.analysis.sharing[writer]:
            for tensor in graph.output_tensors(graph.index_of[member]):
                for reader in graph.tensor_consumers(tensor).tolist():
                    assert reader == update or reader in above[update], graph.ids[reader]
    only_order = [
        e
        for e in range(graph.tensor_count)
        if graph.tensor_bytes[e] == 0
        and any(graph.ids[c] in captured.code.writers for c in graph.tensor_consumers(e))
    ]
    assert only_order, "the data alone does not order every reader"


def test_order_tensors_come_after_data(alexnet: CapturedStep) -> None:
    """Messages name the data tensor as output 0."""
    graph = alexnet.operators
    for i in range(graph.operator_count):
        sizes = graph.tensor_bytes[graph.output_tensors(i)]
        assert len(sizes) <= 2 and (len(sizes) < 2 or sizes[1] == 0)


def test_operators_say_which_part_of_the_model_they_are_of(alexnet: CapturedStep) -> None:
    graph = alexnet.operators
    modules = dict(zip(graph.ids, graph.modules, strict=True))
    for layer in ("model.features.0", "model.classifier.5"):
        name = layer.replace(".", "_")
        assert modules[f"parameter_{name}_weight"] == modules[f"update_{name}_weight"] == layer
        kinds = {graph.types[i] for i, one in enumerate(graph.modules) if one == layer}
        forward = "aten.convolution.default" if "features" in layer else "aten.addmm.default"
        backward = "aten.convolution_backward.default" if "features" in layer else "aten.mm.default"
        assert {forward, backward} <= kinds, "the backward pass is of its forward's part"
    assert modules["input_0"] == ""
    without = [i for i, one in enumerate(graph.modules) if not one]
    assert len(without) <= 0.1 * graph.operator_count


@pytest.mark.thorough
def test_modules_do_not_depend_on_how_a_step_is_given() -> None:
    """A repeated call belongs to the same module; autocast, and a step without a loss, add no
    level."""
    whole = capture("placewire.examples.models.gnmt:training_step_small", 2, ADAMW, 0).operators
    assert {one.partition("@")[0] for one in whole.modules} == set(whole.modules)
    assert whole.modules.count("model.encoder.second.cell.given") > 6
    cast = capture(MLP, 4, ADAMW, 0, autocast="bf16").operators
    assert {one.partition(".")[0] for one in cast.modules} <= {"", "model", "loss"}
    alone = capture(
        "placewire.examples.models.two_towers:training_step_small", 4, ADAMW, 0
    ).operators
    assert {one.partition(".")[0] for one in alone.modules} <= {"", "model"}
    assert "model.user_tower.0" in alone.modules


def test_constants_are_no_operators(hard: CapturedStep) -> None:
    assert len(hard.code.constants) == 3  # the mask, the tensor in the source, the loss's gradient
    assert not any("mask" in i or "constant" in i for i in hard.operators.ids)


def test_random_operators_are_known(hard: CapturedStep) -> None:
    assert {hard.nodes[i].target for i in hard.analysis.random} == {
        torch.ops.aten.native_dropout.default
    }
    assert len(hard.analysis.random) == 2


def test_same_seed_same_graph_and_parameters(hard: CapturedStep) -> None:
    again = capture("tests.models.hard:training_step", 3, ADAMW, 0)
    assert again.operators.structure_hash == hard.operators.structure_hash
    assert all(torch.equal(v, again.values[k]) for k, v in hard.values.items())
    other = capture("tests.models.hard:training_step", 3, replace(ADAMW, lr=2e-3), 0)
    assert other.operators.structure_hash != hard.operators.structure_hash
    larger = capture("tests.models.hard:training_step", 4, ADAMW, 0)
    assert larger.operators.structure_hash != hard.operators.structure_hash


def test_command_writes_the_same_graph_from_another_process(tmp_path: Path) -> None:
    out = tmp_path / "graph.json.gz"
    done = run_capture(MLP, "--batch", "8", "--optimizer", '{"lr": 0.01}', "--out", str(out))
    assert done.returncode == 0, done.stderr
    graph = load_graph(out)
    here = capture(MLP, 8, OptimizerChoice("adamw", 0.01), 0).operators
    assert graph.structure_hash == here.structure_hash
    assert np.array_equal(graph.activation_bytes, here.activation_bytes)
    assert any(file.endswith("examples/models/mlp.py") for file in graph.notes["sources"])
    assert not any("site-packages" in file for file in graph.notes["sources"])


def test_command_explains_control_flow_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "graph.json"
    done = run_capture("tests.models.hard:branches", "--batch", "4", "--out", str(out))
    assert done.returncode == 3
    assert not out.exists()
    message = done.stderr.splitlines()[-1]
    assert "hard.py" in message and "`if y.sum() > 0:`" in message
    assert "torch.where" in message
    assert "Traceback" not in done.stderr and done.stdout == ""


def run_capture(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "placewire.optimizer.commands.capture", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Selects", ["hard.py", "shape depends on values"]),
        ("ReadsNumber", ["hard.py", "number taken out of a tensor"]),
        ("NotScalar", ["(4, 4)", "scalar loss"]),
        ("WritesInput", ["in place"]),
        ("NothingToTrain", ["no trainable parameter"]),
        ("WrongShapes", ["hard.py", "self.linear(x[:, :3])"]),
    ],
)
def test_what_cannot_be_captured_is_explained(
    name: str, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    step = hard_models.wrong_step(name)
    with pytest.raises(CaptureError) as raised:
        joint_graph(step.model, step.example_inputs, "tests.models.hard:x")
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("placewire.examples.models.alexnet", "module:function"),
        ("nowhere.to_be:found", "no module 'nowhere'"),
        ("tests.models.hard:nothing", "no function 'nothing'"),
        ("tests.models.hard:Loss", "failed at"),
        ("tests.models.hard:wrong_step", "failed at"),
    ],
)
def test_wrong_model_paths_are_explained(path: str, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        capture(path, 2, ADAMW, 0)


def test_a_loss_that_is_a_function_is_explained() -> None:
    with pytest.raises(CaptureError, match=r"loss must be a torch\.nn\.Module, and is a func"):
        load_training_step("tests.models.hard:loss_is_a_function", 2, 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shorter_batch", r"batches\(1\) returned float32\[1, 3\], and .* float32\[2, 3\]: "),
        ("other_type", r"returned float64\[2, 3\], and"),
        ("too_few", "returned nothing, and"),
        ("no_tensors", "must return a tuple of tensors"),
        ("failing_batch", r"batches\(1\) failed at .*hard\.py:.*: RuntimeError"),
    ],
)
def test_a_batch_that_is_not_as_the_example_is_explained(name: str, words: str) -> None:
    step = load_training_step(f"tests.models.hard:{name}", 2, 0)
    with pytest.raises(CaptureError, match=words):
        step.batches(1)


def test_a_data_loader_s_list_is_a_batch() -> None:
    (x,) = load_training_step("tests.models.hard:list_of_tensors", 2, 0).batches(1)
    assert x.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [("lion", {}, "accepted: adam, adamw, sgd"), ("sgd", {"beta1": 0.5}, "no option 'beta1'")],
)
def test_unknown_optimizers_are_refused(name: str, options: dict[str, float], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        OptimizerChoice(name, 0.1, options)


def test_the_package_loads_no_torch() -> None:
    code = "import sys, placewire.optimizer.capture, placewire.optimizer.profile.scale; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=900).returncode == 0
