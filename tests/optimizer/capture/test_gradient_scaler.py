"""A step whose loss is scaled trains as plain PyTorch does with torch.amp.GradScaler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.gradient_scaler import GradientScaler
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice, parameter_update
from placewire.optimizer.cli import main
from tests.optimizer.capture.eager import Trained, train_captured, train_eager

SMALL = "tests.models.small:"
SCALED = "tests.models.scaled:"
STEPS = 12
# Gradients of fp16 are infinite in the first steps, and later whenever the scale has grown.
LARGE = GradientScaler(2.0**20, growth_interval=2)
# Not by powers of two, so that every scale changes the last bits of a gradient.
ODD = GradientScaler(3.0**12, growth_factor=1.7, backoff_factor=0.3, growth_interval=2)
ADAMW = OptimizerChoice("adamw", 1e-2, scaler=LARGE)
CHOICES = {
    "adamw": ADAMW,
    "adamw, clipped": replace(ADAMW, clip_norm=0.1),
    "adamw, by odd scales": replace(ADAMW, scaler=ODD),
    "adamw, clipped, by odd scales": replace(ADAMW, clip_norm=0.1, scaler=ODD),
    "sgd": replace(ADAMW, name="sgd", lr=0.1),
    "RMSprop": replace(ADAMW, name="torch.optim:RMSprop", lr=1e-3),
    "RMSprop, by odd scales": replace(ADAMW, name="torch.optim:RMSprop", lr=1e-3, scaler=ODD),
    "scheduled": replace(ADAMW, schedule=LearningRateSchedule("cosine", 3, total_steps=STEPS)),
}
# `make test` trains these with whole batches, too: a fused kernel, and a class of torch.optim.
ALSO_WHOLE = {"adamw", "RMSprop, by odd scales"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_trains_as_eager(path: str, choice: OptimizerChoice, **options: Any) -> Trained:
    """Compares losses and scales of all steps, and the values after them, to the last bit."""
    ours = train_captured(capture(path, 4, choice, 3, **options), STEPS)
    theirs = train_eager(path, choice, STEPS, 4, 3, **options)
    assert ours.losses == theirs.losses and len(set(ours.losses)) > STEPS // 2
    assert ours.scales == theirs.scales
    assert any(after < before for before, after in pairwise(ours.scales)), "no step was skipped"
    assert any(after > before for before, after in pairwise(ours.scales)), "it never grew"
    for name, value in ours.values.items():
        assert torch.equal(value, theirs.values[name]), name
        assert bool(value.isfinite().all())
    return ours


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("name", "accumulate"),
    [
        *((name, 2) for name in CHOICES),
        *(
            pytest.param(name, 1, marks=() if name in ALSO_WHOLE else pytest.mark.thorough)
            for name in CHOICES
        ),
    ],
)
def test_it_trains_like_eager_to_the_last_bit(name: str, accumulate: int) -> None:
    options = {"autocast": "fp16", "accumulate": accumulate}
    assert_trains_as_eager(f"{SMALL}mlp", CHOICES[name], **options)


@pytest.mark.parametrize("model", ["alexnet", "gpt2"])
def test_convolutions_and_attention_do_too(model: str) -> None:
    assert_trains_as_eager(f"{SMALL}{model}", ADAMW, autocast="fp16", accumulate=2)


def test_layers_computed_again_change_nothing() -> None:
    options: Any = {"autocast": "fp16", "accumulate": 2}
    held = capture(f"{SMALL}gpt2", 4, ADAMW, 3, **options)
    again = capture(f"{SMALL}gpt2", 4, ADAMW, 3, **options, recompute="all")
    assert again.operators.operator_count > held.operators.operator_count
    ours, theirs = train_captured(again, STEPS), train_captured(held, STEPS)
    assert (ours.losses, ours.scales) == (theirs.losses, theirs.scales)
    assert all(torch.equal(value, theirs.values[name]) for name, value in ours.values.items())


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_an_infinite_loss_leaves_the_parameters_as_they_are(clip_norm: float | None) -> None:
    choice = replace(ADAMW, clip_norm=clip_norm, scaler=GradientScaler(4.0, growth_interval=3))
    trained = assert_trains_as_eager(f"{SCALED}overflowing", choice)
    assert trained.scales == [4, 4, 4, 8, 8, 4, 4, 4, 8, 8, 4, 4]


def test_weights_of_float16_keep_the_small_values_of_their_gradients() -> None:
    scaler = GradientScaler(2.0**18, growth_interval=2)
    assert_trains_as_eager(f"{SCALED}half", OptimizerChoice("sgd", 0.1, scaler=scaler))


@pytest.mark.parametrize(
    "changes", [{"clip_norm": 1.0}, {"name": "torch.optim:SGD"}], ids=["clipped", "not fused"]
)
def test_gradients_of_float16_that_torch_would_not_unscale_are_refused(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(CaptureError, match=r"weight is of float16, .* job.autocast: fp16"):
        capture(f"{SCALED}half", 4, replace(ADAMW, **changes), 3)


def test_a_metric_of_the_same_name_is_refused() -> None:
    captured = capture(f"{SCALED}unscaled", 4, ADAMW, 3)
    assert captured.code.metrics == {"scale": "metric_scale", "skipped": "found_inf"}
    with pytest.raises(CaptureError, match=r"'skipped'.* job.optimizer.scaler; give the step's"):
        capture(f"{SCALED}reporting", 4, ADAMW, 3)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"init_scale": 0}, "init_scale 0 must be a finite number above 0"),
        ({"init_scale": float("inf")}, "init_scale inf must be a finite number above 0"),
        ({"growth_factor": 1}, "growth_factor 1 must be a finite number above 1"),
        ({"backoff_factor": 1.0}, "backoff_factor 1 must be more than 0 and less than 1"),
        ({"growth_interval": 0}, "growth_interval 0 must be a whole number from 1"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, Any], what: str) -> None:
    assert OptimizerChoice.of({"scaler": {}}).scaler == GradientScaler()
    with pytest.raises(CaptureError, match=what):
        OptimizerChoice.of({"scaler": settings})


def test_the_settings_are_those_of_torch() -> None:
    theirs = torch.amp.GradScaler("cpu").state_dict()
    del theirs["scale"], theirs["_growth_tracker"]
    assert GradientScaler().settings == theirs
    assert GradientScaler().init_scale == torch.amp.GradScaler("cpu").get_scale()


def test_a_skipped_first_step_is_none_of_momentum() -> None:
    """torch's fused kernel would go on from a momentum buffer that it never wrote."""
    choice = OptimizerChoice("sgd", 0.1, {"momentum": 0.9, "dampening": 0.5}, scaler=LARGE)
    skipping, other = torch.ones(70), torch.ones(70)
    ours, theirs = parameter_update(choice, skipping), parameter_update(choice, other)
    infinite, none, scale = torch.full((70,), torch.inf), torch.zeros(()), torch.tensor(4.0)
    ours(skipping, infinite, found_inf=torch.ones(()), scale=scale)
    assert torch.equal(skipping, torch.ones(70)) and not ours.has_updated
    for _ in range(3):
        gradient = torch.randn(70)
        ours(skipping, gradient, found_inf=none, scale=scale)
        theirs(other, gradient / 4)
    ours(skipping, infinite, found_inf=torch.ones(()), scale=scale)
    assert torch.equal(skipping, other) and not torch.equal(other, torch.ones(70))


def test_the_gradient_of_an_update_stays_as_it_is() -> None:
    """Others may read it, as an operator that sends it does."""
    parameter, gradient = torch.ones(70), torch.full((70,), 8.0)
    update = parameter_update(ADAMW, parameter)
    update(parameter, gradient, found_inf=torch.zeros(()), scale=torch.tensor(8.0))
    assert torch.equal(gradient, torch.full((70,), 8.0))


def test_a_loaded_number_outlives_a_step_that_is_skipped() -> None:
    """A class may keep its count of steps as a number, which a checkpoint has, too."""
    choice = OptimizerChoice("tests.models.optimizers:Signed", 1e-2, scaler=LARGE)
    parameter = torch.zeros(4)
    update = parameter_update(choice, parameter)
    loaded = update.state(parameter, 500)
    loaded["count"].fill_(500)
    with torch.no_grad():
        update(parameter, torch.full((4,), torch.inf), found_inf=torch.ones(()))
        assert float(update.state(parameter, 501)["count"]) == 500
        update(parameter, torch.ones(4), found_inf=torch.zeros(()))
        assert float(update.state(parameter, 502)["count"]) == 501
        update(parameter, torch.ones(4), found_inf=torch.zeros(()))
        assert float(update.state(parameter, 503)["count"]) == 502


@pytest.mark.parametrize("command", ["capture", "profile"])
@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("{}", "give --optimizer '{\"scaler\": {}}', or --autocast bf16"),
        ('{"scaler": {"init_scale": Infinity}}', "init_scale inf must be a finite number above 0"),
    ],
)
def test_commands_refuse_fp16_whose_loss_is_not_scaled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, optimizer: str, said: str
) -> None:
    out = tmp_path / "graph.json"
    words = [
        command, "placewire.examples.models.mlp:training_step", "--batch", "4",
        "--autocast", "fp16", "--optimizer", optimizer, "--out", str(out),
    ]  # fmt: skip
    assert main(words) == 3
    assert said in capsys.readouterr().err and not out.exists()
