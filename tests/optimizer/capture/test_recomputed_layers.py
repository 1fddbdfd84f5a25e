"""`recompute` finds layers, and makes of them what torch.utils.checkpoint would."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast, Recompute
from placewire.optimizer.profile.process_memory import peak_on_one_device
from tests.optimizer.capture.eager import train_captured, train_eager

CHOICE = OptimizerChoice(lr=1e-2)
CHECKPOINTED, LAYERED = "tests.models.checkpointed:", "tests.models.layered:"


def step(
    model: str, recompute: Recompute = "none", batch: int = 8, accumulate: int = 1
) -> CapturedStep:
    return capture(model, batch, CHOICE, 3, accumulate=accumulate, recompute=recompute)


def peak(captured: CapturedStep) -> int:
    graph = captured.operators
    return peak_on_one_device(graph.with_seconds({"cpu": np.full(graph.operator_count, 1e-3)}))


def layers_again(captured: CapturedStep, of: str) -> set[str]:
    """of: a list's name. Returns the numbers of its elements that are computed again."""
    graph = captured.operators
    modules = [m for name, m in zip(graph.ids, graph.modules, strict=True) if "_again" in name]
    found = [re.fullmatch(rf"{of}\.(\d+).*", one) for one in modules]
    return {"elsewhere" if one is None else one[1] for one in found}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_is_what_a_checkpoint_around_each_layer_is(accumulate: int) -> None:
    ours = step(CHECKPOINTED + "plain", "all", accumulate=accumulate)
    theirs = step(CHECKPOINTED + "again", accumulate=accumulate)
    assert ours.operators.types == theirs.operators.types
    assert any("_again" in one for one in ours.operators.ids)
    assert peak(ours) == peak(theirs)


def test_every_second_layer_takes_less_than_none_and_more_than_all() -> None:
    model = CHECKPOINTED + "wide"
    none, half, every = step(model, batch=16), step(model, "half", 16), step(model, "all", 16)
    assert peak(every) < 0.8 * peak(half) < 0.8 * 0.8 * peak(none)
    assert layers_again(half, "model.layers") == set("024")
    assert layers_again(every, "model.layers") == set("012345")


@pytest.mark.parametrize(
    ("model", "accumulate", "autocast"),
    [
        (CHECKPOINTED + "plain", 2, None),
        (CHECKPOINTED + "plain", 1, "bf16"),
        (LAYERED + "inner", 1, None),
        (LAYERED + "thin", 2, None),
        (LAYERED + "shared", 1, None),
        ("placewire.examples.models.resnet50:training_step_small", 1, None),
    ],
)
def test_it_trains_as_pytorch_does_without_it(
    model: str, accumulate: int, autocast: Autocast | None
) -> None:
    captured = capture(
        model, 4, CHOICE, 3, accumulate=accumulate, autocast=autocast, recompute="all"
    )
    assert any("_again" in one for one in captured.operators.ids)
    ours = train_captured(captured, 3)
    theirs = train_eager(model, CHOICE, 3, 4, 3, accumulate, autocast)
    assert ours.losses == theirs.losses
    for key, value in theirs.values.items():
        if key in ours.values:
            assert torch.equal(ours.values[key], value), key


def test_layers_are_found_in_a_list_that_is_nearly_all_of_another() -> None:
    assert layers_again(step(LAYERED + "inner", "all"), r"model\.1") == set("0123")


def test_thin_layers_are_computed_again_in_groups() -> None:
    """Each alone would save nothing: all that it holds is what it hands on."""
    none, every = step(LAYERED + "thin", batch=4096), step(LAYERED + "thin", "all", batch=4096)
    assert peak(every) < 0.8 * peak(none)


def test_layers_beside_checkpoints_of_the_models_own_are_computed_again() -> None:
    """The rows of four between them are joined three by three, and no further. What a group hands
    on, and what its backward half does not read, is not computed again."""
    captured = step(LAYERED + "some_checkpointed", "all", batch=64)
    assert peak(captured) < peak(step(LAYERED + "some_checkpointed", batch=64))
    assert layers_again(captured, "model") == {"1", "6", "7", "11"}


def test_a_layer_that_hands_on_a_view_of_another_one_is_a_layer() -> None:
    """Both were joined into one, and refused."""
    captured = step(LAYERED + "viewing", "all")
    assert captured.operators.types == step(LAYERED + "viewing").operators.types


@pytest.mark.parametrize("name", ["dropping_and_normalising", "counting"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_is_drawn_or_written_stays_the_same(name: str, accumulate: int) -> None:
    """Masks are drawn once, and running averages and buffers written once."""
    plain = step(LAYERED + name, accumulate=accumulate)
    again = step(LAYERED + name, "all", accumulate=accumulate)
    assert layers_again(again, "model") == set("0123")
    ours, theirs = train_captured(again, 3), train_captured(plain, 3)
    assert ours.losses == theirs.losses and ours.values.keys() == theirs.values.keys()
    for key, value in theirs.values.items():
        assert torch.equal(ours.values[key], value), key


def test_a_layer_that_is_called_several_times_is_several() -> None:
    again = [one for one in step(LAYERED + "shared", "all").operators.ids if "tanh" in one]
    assert len([one for one in again if one.endswith("_again")]) == 3


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    with pytest.raises(
        CaptureError,
        match=r"no_list: there are no layers .*Sequential.*, and leave out job\.recompute$",
    ):
        step(LAYERED + "no_list", "all")


def test_checkpoints_of_the_models_own_are_kept() -> None:
    with pytest.raises(CaptureError, match=r"has torch\.utils\.checkpoint in all of its layers"):
        step(CHECKPOINTED + "again", "all")
