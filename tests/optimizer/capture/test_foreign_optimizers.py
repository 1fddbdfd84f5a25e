"""Any class that is made like those of torch.optim trains as it does in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from placewire.optimizer.capture import shards
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.memory import held_bytes
from placewire.optimizer.capture.optimizer_options import options_of
from placewire.optimizer.capture.parameter_groups import ParameterGroup
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice, parameter_update
from tests.optimizer.capture.eager import assert_trains_as_eager

SMALL = "tests.models.small:mlp"
ROWS = (4096, 16)
CHOICES = {
    "RMSprop": OptimizerChoice("torch.optim:RMSprop", 1e-2, {"momentum": 0.9, "centered": True}),
    "Adagrad": OptimizerChoice("torch.optim:Adagrad", 1e-2),
    "NAdam": OptimizerChoice("torch.optim:NAdam", 1e-2),
    "RAdam": OptimizerChoice("torch.optim:RAdam", 1e-2, {"betas": (0.8, 0.99)}),
    "Adamax": OptimizerChoice("torch.optim:Adamax", 1e-2),
    "Adadelta": OptimizerChoice("torch.optim:Adadelta", 1.0),
    "ASGD": OptimizerChoice("torch.optim:ASGD", 1e-2),
    "Rprop": OptimizerChoice("torch.optim:Rprop", 1e-2),
    "Adafactor": OptimizerChoice("torch.optim:Adafactor", 1e-2),
    "plain AdamW": OptimizerChoice("torch.optim:AdamW", 1e-2, {"amsgrad": True}),
    "a user's": OptimizerChoice("tests.models.optimizers:Signed", 1e-2),
}
NOT_ELEMENTWISE = {"Adafactor"}


@pytest.mark.parametrize(
    ("name", "accumulate"),
    # `make test` trains every second class with micro-batches, and the others with whole batches.
    [
        pytest.param(name, 1 + other, marks=() if other == number % 2 else pytest.mark.thorough)
        for number, name in enumerate(CHOICES)
        for other in range(2)
    ],
)
def test_it_trains_like_eager_to_the_last_bit(name: str, accumulate: int) -> None:
    assert_trains_as_eager(SMALL, CHOICES[name], accumulate=accumulate)


def test_its_gradients_are_clipped_and_its_rate_is_scheduled() -> None:
    schedule = LearningRateSchedule("cosine", warmup_steps=2, total_steps=6)
    choice = OptimizerChoice("torch.optim:RMSprop", 1e-2, clip_norm=0.05, schedule=schedule)
    assert_trains_as_eager(SMALL, choice)


@pytest.mark.parametrize("name", CHOICES)
def test_its_state_is_predicted(name: str) -> None:
    choice, parameter = CHOICES[name], torch.randn(ROWS)
    update, root = parameter_update(choice, parameter), torch.nn.Module()
    root.add_module("update", update)
    update(parameter, torch.randn(ROWS))
    assert held_bytes(root) == pytest.approx(choice.state_bytes(parameter), abs=8)
    assert choice.elementwise == (name not in NOT_ELEMENTWISE)


def test_a_copy_of_the_parameter_takes_the_state_with_it() -> None:
    choice = CHOICES["a user's"]
    ours, theirs = torch.ones(5), torch.ones(5)
    moved, stays = (parameter_update(choice, value) for value in (ours, theirs))
    for _ in range(3):
        gradient = torch.randn(5)
        ours = ours.clone()
        moved(ours, gradient)
        stays(theirs, gradient)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("torch.optim:LBFGS", {}, "cannot take a step with a gradient alone.*closure"),
        ("torch.optim:SparseAdam", {}, "does not support dense gradients"),
        ("torch.optim:RMSprop", {"beta": 1}, "unexpected keyword argument 'beta'.*takes lr, alpha"),
        ("torch.optim:RMSprop", {"alpha": -1}, "Invalid alpha"),
        ("torch.optim:Nothing", {}, "Nothing is no subclass"),
        ("nothing.at_all:Adam", {}, "cannot be imported.*nothing"),
        ("tests.models.optimizers:NoOptimizer", {}, "no subclass of torch.optim.Optimizer"),
        ("tests.models.optimizers:OneNorm", {}, "by the gradients of others"),
        ("tests.models.optimizers:Counting", {}, "which no checkpoint would have"),
        ("torch.optim.RMSprop", {}, "accepted: adam, adamw, sgd, or `module:Class`"),
        ("torch.optim:RMSprop", {"alpha": "much"}, "'alpha' is 'much'; accepted: a number"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        OptimizerChoice(name, 0.1, options)


def test_a_parameter_that_the_class_refuses_is_told() -> None:
    choice = OptimizerChoice("torch.optim:Muon", 0.1)
    with pytest.raises(CaptureError, match=r"refused a parameter of shape \[.*only supports 2D"):
        capture(SMALL, 4, choice, 0)


def test_what_updates_whole_weights_has_no_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 1 << 10)
    model = "placewire.examples.models.transformer:training_step_small"
    with pytest.raises(CaptureError, match=r"updates a weight as a whole.*give job\.shards 1"):
        capture(model, 4, CHOICES["Adafactor"], 0, 2, shards=2)
    assert capture(model, 4, CHOICES["RMSprop"], 0, 2, shards=2).code.shards


def test_what_a_group_s_options_make_of_a_class_counts() -> None:
    name = "tests.models.optimizers:OfMatrices"
    assert OptimizerChoice(name, 0.1).elementwise
    assert not OptimizerChoice(name, 0.1, {"decay": 0.5}).elementwise
    groups = (ParameterGroup(("bias",), options={"decay": 0.5}),)
    assert not OptimizerChoice(name, 0.1, groups=groups).elementwise
    with pytest.raises(CaptureError, match="unexpected keyword argument 'odd'"):
        OptimizerChoice(name, 0.1, groups=(ParameterGroup(("bias",), options={"odd": 1}),))


def test_betas_are_taken_as_torch_has_them() -> None:
    assert options_of("adamw", {"betas": [0.9, 0.95], "eps": 1}) == {
        "beta1": 0.9, "beta2": 0.95, "eps": 1.0,
    }  # fmt: skip
    document = {"name": "adam", "options": {"betas": (0.5, 0.6)}}
    assert OptimizerChoice.of(document).torch_options["betas"] == (0.5, 0.6)
    for wrong in (0.9, [0.9], {"betas": 1}):
        with pytest.raises(CaptureError, match="must be two numbers"):
            options_of("adamw", {"betas": wrong})
    with pytest.raises(CaptureError, match="no option 'betas'"):
        options_of("sgd", {"betas": [0.9, 0.95]})
