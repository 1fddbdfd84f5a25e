"""Decomposed captures: do they compute what eager PyTorch computes, and is nothing left fused?

Eager PyTorch and a decomposed step do not agree to the last bit for long. A matrix product adds its
bias before it rounds, a softmax adds in another order than a sum does, and torch.optim's kernels
multiply and add with one rounding, where the decomposed step has two operators. So the models are
in float64, where such differences stay far below those of a wrong formula.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.job.eager import whole
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.decompositions import variance_and_mean
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.gradient_scaler import GradientScaler
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.optimizer_options import Option
from placewire.optimizer.capture.parameter_groups import ParameterGroup
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import captured_step
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import load_graph
from tests.optimizer.capture.eager import train_captured

STEPS, BATCH, SEED = 4, 4, 3
# Of float64, whose last bit is 1e-16 of a value: what rounding may add up to in a few steps.
ROUNDING = 1e-9
ADAMW = OptimizerChoice("adamw", 1e-3)
# What several operators could do, but for convolutions, batch norms, pooling and embeddings.
FUSED = ("addmm", "softmax", "layer_norm", "gelu", "dropout", "attention", "nll_loss", "update",
         "threshold", "prims")  # fmt: skip


@dataclass(frozen=True)
class Eager:
    """values: by name after training, dots as underscores. state: torch.optim's by parameter."""

    losses: list[float]
    values: Mapping[str, torch.Tensor]
    state: Mapping[str, Mapping[str, torch.Tensor]]


def decomposed(path: str, choice: OptimizerChoice, **more: Any) -> CapturedStep:
    return captured_step(
        CaptureOptions(f"tests.models.{path}", BATCH, choice, SEED, decompose=True, **more)
    )


@pytest.fixture(scope="module")
def mlp() -> CapturedStep:
    return decomposed("small:mlp", ADAMW)


def eager(path: str, choice: OptimizerChoice, accumulate: int = 1) -> Eager:
    """Trains by the unfused optimizer, with attention written out."""
    step = load_training_step(f"tests.models.{path}", BATCH, SEED)
    model, losses = whole(step), []
    optimizer = unfused_optimizer(choice, model)
    for number in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        parts = [x.chunk(accumulate) for x in step.batches(number)]
        for micro_batch in zip(*parts, strict=True):
            with sdpa_kernel(SDPBackend.MATH):
                loss = model(*micro_batch) / accumulate
            loss.backward()
            total += loss.item()
        if choice.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), choice.clip_norm, foreach=False)
        optimizer.step()
        losses.append(total)
    named = (*model.named_parameters(), *model.named_buffers())
    names = {name.replace(".", "_"): value for name, value in named}
    return Eager(
        losses,
        {name: value.detach() for name, value in names.items()},
        {name: optimizer.state[value] for name, value in names.items()},
    )


def unfused_optimizer(choice: OptimizerChoice, model: nn.Module) -> torch.optim.Optimizer:
    options: dict[str, Any] = {**choice.all_options, "foreach": False, "fused": False}
    if choice.name == "sgd":
        options["nesterov"] = bool(options["nesterov"])
        return torch.optim.SGD(model.parameters(), lr=choice.lr, **options)
    options["betas"] = options.pop("beta1"), options.pop("beta2")
    kind = torch.optim.AdamW if choice.name == "adamw" else torch.optim.Adam
    return kind(model.parameters(), lr=choice.lr, **options)


def assert_trains_alike(
    path: str, choice: OptimizerChoice, accumulate: int = 1, shards: int = 1
) -> CapturedStep:
    expected = eager(path, choice, accumulate)
    captured = decomposed(path, choice, accumulate=accumulate, shards=shards)
    trained = train_captured(captured, STEPS)
    assert trained.losses == pytest.approx(expected.losses, rel=ROUNDING)
    assert len(set(expected.losses)) == STEPS, "nothing was learnt"
    shards_by_name = {node.split("_", 1)[1]: one for node, one in captured.code.shards.items()}
    for key, value in trained.values.items():
        what, name = None, key
        if key.startswith("optimizer__"):
            _, what, name = key.split("__", 2)
        shard = shards_by_name.get(name)
        whole_name = name if shard is None else shard.name.replace(".", "_")
        right = expected.values[whole_name] if what is None else expected.state[whole_name][what]
        if shard is not None and what != "step":
            right = right[shard.start : shard.end]
        torch.testing.assert_close(value, right, rtol=ROUNDING, atol=ROUNDING, msg=key)
    return captured


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {}),
        ("sgd", {"weight_decay": 0.3}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.3}),
        ("sgd", {"momentum": 0.9, "nesterov": 1.0}),
        ("adam", {}),
        ("adam", {"weight_decay": 0.3}),
        ("adamw", {}),
        ("adamw", {"beta1": 0.3, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.0}),
    ],
)
def test_the_update_written_out_is_that_of_torch(name: str, options: Mapping[str, Option]) -> None:
    assert_trains_alike("precise:products", OptimizerChoice(name, 0.05, options))


@pytest.mark.parametrize(
    "choice",
    [
        OptimizerChoice("adamw", 0.05, clip_norm=0.1),
        OptimizerChoice("adam", 0.05, {"weight_decay": 0.3}),
        OptimizerChoice("sgd", 0.05, {"momentum": 0.9, "weight_decay": 0.3, "nesterov": 1.0}),
    ],
)
def test_each_value_is_updated_in_its_own_type(choice: OptimizerChoice) -> None:
    """Hyperparameters are in float64, and one parameter has no dimensions."""
    captured = decomposed("precise:products_in_float32", choice)
    for node in captured.analysis.nodes:
        if node.name in captured.code.writers:
            held, new = (one.meta["val"] for one in node.all_input_nodes)
            assert held.dtype == new.dtype == torch.float32, node.name


def test_clipped_gradients_are_written_out_too() -> None:
    assert_trains_alike("precise:products", OptimizerChoice("sgd", 0.05, clip_norm=0.1))


@pytest.mark.parametrize(
    "name",
    ["mlp", "gpt2", *(pytest.param(one, marks=pytest.mark.slow) for one in ("vgg", "bert"))],
)
def test_a_decomposed_step_trains_as_eager_pytorch(name: str) -> None:
    captured = assert_trains_alike(f"precise:{name}", ADAMW)
    kinds = Counter(captured.operators.types)
    assert not [kind for kind in kinds if any(part in kind for part in FUSED)]
    trained = {*captured.code.writers.values()} & {*captured.code.parameters}
    assert kinds["aten.sqrt.default"] >= 2 * len(trained) > 6


def test_micro_batches_and_shards_are_decomposed_too() -> None:
    cut = assert_trains_alike("precise:mlp", ADAMW, accumulate=2, shards=2)
    assert cut.operators.micro_batch.max() == 1
    assert cut.code.shards


def test_a_batch_norm_in_micro_batches_is_that_of_eager_pytorch() -> None:
    captured = assert_trains_alike("precise:normed", ADAMW, accumulate=2)
    assert [one for one in captured.values if "running_mean" in one]


def test_parameter_groups_have_hyperparameters_of_their_own() -> None:
    groups = (ParameterGroup(("scale",), 0.5, {"weight_decay": 0.0}),)
    captured = decomposed("precise:products", OptimizerChoice("adamw", 0.05, groups=groups))
    rates = {
        node.name.removeprefix("update_lr_"): node.args[0]
        for node in captured.analysis.nodes
        if node.name.startswith("update_lr_")
    }
    assert rates == {"weight": 0.05, "other": 0.05, "scale": 0.5}


def test_the_graph_has_the_same_memory_and_the_state_beside_its_parameter(
    mlp: CapturedStep,
) -> None:
    path = "tests.models.small:mlp"
    options = CaptureOptions(path, BATCH, ADAMW, SEED)
    fused = captured_step(options).operators
    graph, count = mlp.operators, len(mlp.code.trained)
    steps = 4 * count  # A float32 for each parameter, which the fused update does not count.
    assert graph.weight_bytes.sum() == fused.weight_bytes.sum() + steps
    modules = dict(zip(graph.ids, graph.modules, strict=True))
    weight = next(i for i in graph.ids if i.startswith("parameter") and i.endswith("weight"))
    module = modules[weight]
    state = weight.replace("parameter_", "buffer_optimizer__exp_avg__")
    assert module and modules[state] == module
    # A state is not bound to its parameter's device: that is for the search to find.
    alone = graph.colocation[graph.index_of[state]]
    assert alone >= 0 and alone != graph.colocation[graph.index_of[weight]]


def test_variance_and_mean_are_those_of_torch() -> None:
    given = torch.randn(3, 4, 5, dtype=torch.float64)
    for dim in (None, [1], [0, 2], [-1]):
        for keepdim in (False, True):
            for correction in (0, 1, 2.5):
                found = variance_and_mean(given, dim, correction=correction, keepdim=keepdim)
                expected = torch.var_mean(given, dim, correction=correction, keepdim=keepdim)
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (OptimizerChoice("torch.optim:RMSprop", 0.1), "give adam, adamw or sgd"),
        (OptimizerChoice(scaler=GradientScaler()), "a scaler skips"),
        (OptimizerChoice(schedule=LearningRateSchedule(warmup_steps=2)), "drop it"),
        (OptimizerChoice("sgd", 0.1, {"momentum": 0.9, "dampening": 0.1}), "drop dampening"),
        (
            OptimizerChoice(
                "sgd",
                0.1,
                {"momentum": 0.9},
                groups=(ParameterGroup(("*",), options={"dampening": 0.1}),),
            ),
            "drop dampening",
        ),
    ],
)  # fmt: skip
def test_what_no_graph_can_say_is_refused(choice: OptimizerChoice, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        decomposed("small:mlp", choice)


def test_fp16_is_refused_with_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a scaler and with one."""
    words = ["tests.models.small:mlp", "--batch", "4", "--out", str(tmp_path / "step.json.gz")]
    for given in ("{}", '{"scaler": {}}'):
        fp16 = ["--decompose", "--autocast", "fp16", "--optimizer", given]
        assert main(["capture", *words, *fp16]) == 3
        assert "give --autocast bf16" in capsys.readouterr().err


def test_a_decomposed_graph_goes_through_every_command(
    mlp: CapturedStep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured by running it, and modelled."""
    model, out = "tests.models.small:mlp", str(tmp_path / "step.json.gz")
    placement = str(tmp_path / "placement.json")
    words = [model, "--batch", "4", "--decompose", "--out", out]
    assert main(["profile", *words, "--samples", "3", "--seconds", "1"]) == 0
    measured = load_graph(Path(out))
    assert measured.device_types == ("cpu",) and measured.seconds.sum() > 0
    assert measured.structure_hash == mlp.operators.structure_hash
    assert measured.notes["decompose"] is True and measured.name.endswith("decomposed")
    assert main(["profile", out, "--device", "rtx4080s", "--out", out]) == 0
    servers = ["--servers", "2", "--nics", "1", "--rate", "10Gbit", "--device-memory", "16GiB"]
    servers += ["--device-type", "rtx4080s"]
    assert main(["solve", out, *servers, "--time-limit", "2", "--out", placement]) == 0
    assert main(["check", out, placement]) == 0
    assert "the placement holds" in capsys.readouterr().out
    assert main(["explain", placement, "--graph", out]) == 0
    assert "critical path" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["profile", out, "--decompose", "--device", "rtx4080s", "--out", out])
