"""Models that ask a random number in Python, as those do that may skip layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import captured_from
from placewire.optimizer.capture.updates import OptimizerChoice

ASKED: dict[str, Callable[[torch.Tensor], torch.Tensor | bool]] = {
    "below 0": lambda x: x < 0.0,
    "below 1": lambda x: x < 1,
    "at most -1": lambda x: x <= -1.0,
    "above 1": lambda x: x > 1.0,
    "at least 0": lambda x: x >= 0.0,
}


class Asking(nn.Module):
    def __init__(self, asked: Callable[[torch.Tensor], torch.Tensor | bool]) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)
        self.asked = asked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.yes if self.asked(torch.rand([])) else self.no
        return (chosen(x) ** 2).sum()


class Masking(Asking):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.asked(torch.rand([]))
        assert isinstance(mask, torch.Tensor)
        return (torch.where(mask, self.yes(x), self.no(x)) ** 2).sum()


def trained(model: nn.Module) -> set[str]:
    """The layers that have updates."""
    inputs = (torch.ones(2, 4),)
    step = TrainingStep(model, inputs, lambda number: inputs)
    captured = captured_from(step, CaptureOptions("here:step", 2, OptimizerChoice(), 0))
    updates = [name for name in captured.operators.ids if name.startswith("update_")]
    return {name.split("_")[1] for name in updates}


@pytest.mark.parametrize("words", ASKED)
def test_what_is_sure_of_a_drawn_number_chooses_a_side(words: str) -> None:
    asked = ASKED[words]
    expected = "yes" if asked(torch.rand([])) else "no"
    assert trained(Asking(asked)) == {expected}


@pytest.mark.parametrize(
    "asked",
    [lambda x: x < 0.5, lambda x: x * 2.0 < 0.0, lambda x: x < torch.zeros(())],
    ids=["a half", "another number", "a tensor"],
)
def test_what_is_not_known_is_refused(asked: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(CaptureError, match="a branch on the values of a tensor"):
        trained(Asking(asked))


def test_a_number_of_several_is_no_drawn_number() -> None:
    with pytest.raises(CaptureError, match="a branch on the values of a tensor"):
        trained(Asking(lambda x: torch.rand([2]).sum() < 0.0))


def test_a_comparison_that_is_used_as_a_tensor_stays_one() -> None:
    assert trained(Masking(lambda x: x < 0.0)) == {"yes", "no"}
