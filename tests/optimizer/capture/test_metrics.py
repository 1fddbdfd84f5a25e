"""Scalars that a step reports beside its loss."""

from __future__ import annotations

import pytest
import torch

from placewire.job.transport.transport import Alone
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.halves import forward_hash
from tests.job.lazy_training import on_one_device, program_of
from tests.models.metrics import NAMES
from tests.optimizer.capture.eager import train_captured

ADAMW = OptimizerChoice("adamw", 1e-2)


def captured(name: str, accumulate: int = 1) -> CapturedStep:
    return capture(f"tests.models.metrics:{name}", 8, ADAMW, 3, accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_metrics_change_nothing_of_the_training(accumulate: int) -> None:
    """Also where they draw random numbers before the training does."""
    with_metrics, without = captured("reported", accumulate), captured("silent", accumulate)
    assert tuple(with_metrics.code.metrics) == NAMES and not without.code.metrics
    one, other = train_captured(with_metrics, 5), train_captured(without, 5)
    assert one.losses == other.losses and len(set(one.losses)) == 5
    assert all(torch.equal(value, other.values[name]) for name, value in one.values.items())
    assert forward_hash(with_metrics.operators) == forward_hash(without.operators) != ""


def test_a_step_without_metrics_has_no_operator_for_them() -> None:
    silent = captured("silent").operators
    assert not [i for i in silent.ids if "metric" in i]
    more = set(captured("reported").operators.ids) - set(silent.ids)
    assert {"metric_accuracy", "metric_any_right", "metric_noise"} <= more


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_norm_of_the_gradients_is_reported_where_they_are_clipped(accumulate: int) -> None:
    path, clipped = "tests.models.metrics:without_dropout", OptimizerChoice(clip_norm=0.5)
    step = capture(path, 8, clipped, 3, accumulate)
    assert tuple(step.code.metrics) == (*NAMES, "gradient_norm")
    placement = on_one_device(step)
    program = program_of(step, placement, placement.devices_used[0], Alone())
    eager = load_training_step(path, 8, 3)
    for part in zip(*(x.chunk(accumulate) for x in eager.batches(0)), strict=True):
        (eager.model(*part)[0] / accumulate).backward()
    norm = torch.nn.utils.clip_grad_norm_(eager.model.parameters(), 0.5, foreach=False)
    batch = step.batches(0)
    with torch.no_grad():
        reported = program.module(*(batch[position] for position in program.inputs))
    assert reported["gradient_norm"].item() == norm.item() > 0.5


def test_a_metric_of_the_same_name_is_refused() -> None:
    with pytest.raises(CaptureError, match="two metrics are named 'gradient_norm'"):
        capture("tests.models.metrics:wrong_norm", 8, OptimizerChoice(clip_norm=0.5), 3)
    own = captured("wrong_norm")
    assert tuple(own.code.metrics) == ("gradient_norm",)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("list", "the step returns 3 values; it must return the scalar loss, or the loss and a di"),
        ("pair", "the step returns 2 values"),
        ("dictionary", "the step returns a dict; it must return"),
        ("order", "the step returns a tuple; it must return"),
        ("nested", "metric 'a' is a dict; give a tensor with one element"),
        ("number", "metric 'accuracy' is 0.5, and no tensor: it would stay the same in every step"),
        ("vector", r"metric 'accuracy' is of shape \(3,\); a metric is one number: reduce it"),
        ("complex", "metric 'accuracy' is complex"),
        ("loss", "a metric is named 'loss', as the loss itself is"),
        ("name", "a metric is named 'a b'; give a name of at most 64"),
        ("key", "a metric is named 1; give a name"),
        ("many", "the step returns 33 metrics; at most 32 are reported"),
    ],
)
def test_what_is_no_metric_is_refused(name: str, words: str) -> None:
    with pytest.raises(CaptureError, match=f"tests.models.metrics:wrong_{name}: {words}"):
        captured(f"wrong_{name}")
