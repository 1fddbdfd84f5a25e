"""What a step computes of its whole batch is found, and named, in real captures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import capture, captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast
from placewire.optimizer.capture.whole_batch import what_the_loss_needs

WIDTH = 6


class Net(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), norm
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x))).square().mean()


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.read = nn.Buffer(torch.zeros(())), nn.Buffer(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return x * self.read


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Buffer(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.read


class Loss(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.dropout, self.kind = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), kind
        self.seen = nn.Buffer(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(self.layer(x))
        self.seen.add_(1)
        if self.kind == "lazy" and not hasattr(self, "cache"):
            self.register_buffer("cache", torch.zeros(1))
        if self.kind == "half":
            return (x @ self.layer.weight).half().square().mean()
        if self.kind == "random":
            y = nn.functional.dropout(y)
        if self.kind == "out of memory" and not self.training:
            raise torch.OutOfMemoryError
        if self.kind == "fails" and not self.training:
            raise ValueError("train me")
        if self.kind == "predicts" and not self.training:
            return y
        if self.kind == "sum":
            return y.square().sum()
        if self.kind == "contrastive":
            alike = nn.functional.normalize(y) @ nn.functional.normalize(x).T
            return nn.functional.cross_entropy(alike, torch.arange(len(x)))
        if self.kind == "masked":
            kept = (x[:, 0] > 0.5).float()
            return (y.square().mean(dim=1) * kept).sum() / kept.sum()
        return y.square().mean()


def said_of(kind: str, batch: int = 6) -> str | None:
    torch.manual_seed(0)
    inputs = (torch.randn(batch, WIDTH),)
    model = Loss(kind)
    found = what_the_loss_needs(TrainingStep(model, inputs, lambda number: inputs), batch)
    assert model.training and model.dropout.training and model.seen == 0, "it is left as it was"
    return found


def captured(
    norm: nn.Module, accumulate: int = 1, autocast: Autocast | None = None
) -> CapturedStep:
    def batch(number: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(number)
        return (torch.randn(4, WIDTH, WIDTH, generator=generator),)

    step = TrainingStep(model=Net(norm), example_inputs=batch(0), batches=batch)
    return captured_from(
        step,
        CaptureOptions(
            "here:step", 4, OptimizerChoice("sgd", 0.1), 0, accumulate=accumulate, autocast=autocast
        ),
    )


def found(norm: nn.Module, accumulate: int = 1, autocast: Autocast | None = None) -> str | None:
    said: str | None = captured(norm, accumulate, autocast).operators.notes["whole_batch"]
    return said


NORMALISES = "norm normalises over the batch"


def test_a_batch_norm_is_named_however_the_batch_is_cut() -> None:
    assert found(nn.BatchNorm1d(WIDTH)) == NORMALISES
    assert found(nn.BatchNorm1d(WIDTH), accumulate=2) == NORMALISES
    inner = found(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(WIDTH)))
    assert inner == "norm.1 normalises over the batch"
    assert found(nn.BatchNorm1d(WIDTH), autocast="bf16") == NORMALISES


def test_a_batch_norm_that_does_not_learn_its_means_takes_those_of_the_batch() -> None:
    assert found(nn.BatchNorm1d(WIDTH, track_running_stats=False)) == NORMALISES
    assert found(nn.BatchNorm1d(WIDTH, track_running_stats=False).eval()) == NORMALISES


def test_a_batch_norm_with_given_means_needs_no_batch() -> None:
    assert found(nn.BatchNorm1d(WIDTH).eval()) is None
    assert found(nn.BatchNorm1d(WIDTH).eval(), autocast="bf16") is None


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(WIDTH), nn.GroupNorm(2, WIDTH), nn.InstanceNorm1d(WIDTH, affine=True),
        nn.Dropout(0.5), Reads(),
    ],
    ids=lambda norm: type(norm).__name__,
)  # fmt: skip
def test_what_looks_at_one_sample_after_the_other_needs_no_batch(norm: nn.Module) -> None:
    assert found(norm) is None
    assert found(norm, accumulate=2) is None


def test_a_buffer_that_the_step_writes_is_named() -> None:
    assert found(Counts()) == "the step writes buffer norm.seen"
    tracking = nn.InstanceNorm1d(WIDTH, track_running_stats=True)
    assert (found(tracking) or "").startswith("the step writes buffer norm.running_")


def test_a_mean_over_samples_needs_no_batch_whatever_dropout_draws() -> None:
    assert said_of("mean") is None


@pytest.mark.parametrize("kind", ["sum", "contrastive", "masked"])
def test_a_loss_that_is_no_mean_over_samples_is_told(kind: str) -> None:
    assert "is not the mean of its parts' losses" in (said_of(kind) or "")


@pytest.mark.parametrize(("kind", "why"), [("fails", "train me"), ("predicts", "")])
def test_a_loss_that_cannot_be_computed_twice_is_told(kind: str, why: str) -> None:
    said = said_of(kind) or ""
    assert said.startswith("the loss cannot be computed in evaluation mode (") and why in said


@pytest.mark.parametrize("kind", ["lazy", "half", "out of memory"])
def test_what_is_no_reason_is_not_told(kind: str) -> None:
    """A buffer that is made on the way, rounding in 16 bits, and too little memory to know."""
    assert said_of(kind, batch=64) is None


def test_a_loss_that_draws_in_evaluation_mode_is_told() -> None:
    assert (
        said_of("random")
        == "the loss of the same batch is another one each time, in evaluation mode, too"
    )


def test_a_batch_without_parts_has_no_other_loss() -> None:
    assert said_of("sum", batch=1) is None


def test_what_is_no_batch_is_not_cut() -> None:
    inputs = (torch.randn(6, WIDTH),)
    step = TrainingStep(Loss("sum"), inputs, lambda number: inputs)
    assert what_the_loss_needs(step, 3) is None


def test_the_examples_are_told_apart() -> None:
    models = {"resnet50:training_step_small": True, "transformer:training_step_small": False}
    for model, needs in models.items():
        path = f"placewire.examples.models.{model}"
        graph = capture(path, 4, OptimizerChoice(), 0).operators
        assert (graph.notes["whole_batch"] is not None) == needs, model
