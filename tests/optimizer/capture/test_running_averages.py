"""Averages of batch norms in a step of several micro-batches."""

from __future__ import annotations

import pytest
import torch

from placewire.optimizer.capture import running_averages
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.optimizer.capture.eager import assert_trains_as_eager, train_captured

ADAMW = OptimizerChoice(lr=0.01)
MOVES = {move.__name__ for move in running_averages.MOVES}


def averages_of(captured: CapturedStep) -> list[str]:
    graph = captured.operators
    return sorted(graph.ids[i] for i, kind in enumerate(graph.types) if kind in MOVES)


@pytest.mark.parametrize("name", ["usual", "slow", "quick", "double"])
def test_each_average_is_moved_once_and_equals_eager_loops(name: str) -> None:
    path = f"tests.models.normalised:{name}"
    captured = assert_trains_as_eager(path, ADAMW, batch=12, accumulate=3)
    assert averages_of(captured) == ["average_norm_running_mean", "average_norm_running_var"]
    graph = captured.operators
    source, target, _ = graph.edges
    part = graph.micro_batch
    between = (part[source] >= 0) & (part[target] >= 0) & (part[source] != part[target])
    assert not between.any(), "no micro-batch waits for another"


def test_under_autocast_the_averages_are_those_of_eager_loops() -> None:
    path = "tests.models.normalised:usual"
    captured = assert_trains_as_eager(path, ADAMW, batch=12, accumulate=3, autocast="bf16")
    assert len(averages_of(captured)) == 2


@pytest.mark.parametrize(
    "path",
    [
        "tests.models.normalised:without_weights",
        "tests.models.normalised:called_twice",
        "tests.models.normalised:read_by_the_loss",
        "tests.models.hard:without_dropout",  # whose batch norm gets a transposed view
    ],
)
def test_otherwise_a_micro_batch_waits_for_the_averages(path: str) -> None:
    assert not averages_of(assert_trains_as_eager(path, ADAMW, batch=12, accumulate=3))


def test_a_checkpointed_batch_norm_moves_its_averages_once() -> None:
    plain, again = (
        capture(f"tests.models.normalised:{name}", 12, ADAMW, 3, accumulate=3)
        for name in ("usual", "checkpointed")
    )
    assert len(averages_of(again)) == 2 and "after" in again.operators.types
    # The model doubles what it normalises, so that only the first step's averages are alike.
    one, other = train_captured(plain, 1).values, train_captured(again, 1).values
    for name in ("running_mean", "running_var"):
        (key,) = (key for key in one if key.endswith(name))
        assert torch.equal(one[key], other[key])


def test_batch_norms_in_a_checkpoint_whose_averages_nobody_reads_there_are_captured() -> None:
    captured = capture("tests.models.normalised:unread", 12, ADAMW, 3, accumulate=3)
    assert not averages_of(captured) and len(set(train_captured(captured, 3).losses)) == 3


def test_the_average_on_a_device_is_that_of_a_processor_but_for_rounding() -> None:
    old, *found = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    one, *others = (move(old, found, 0.1, 0.9) for move in running_averages.MOVES)
    for other in others:
        torch.testing.assert_close(one, other)


def test_a_step_of_one_micro_batch_keeps_the_operator_as_it_is() -> None:
    captured = assert_trains_as_eager("tests.models.normalised:usual", ADAMW, batch=12)
    assert not averages_of(captured)
