"""Refusals: is what no rank could run told apart, with the line that it stands in?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as each_row

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.joint import joint_graph
from placewire.optimizer.capture.refusals import refuse_what_cannot_run
from placewire.optimizer.capture.rewrite import placeable
from placewire.optimizer.capture.updates import OptimizerChoice


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x))).sum()


class Maps(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return each_row(torch.sin, self.one(x)).sum()  # type: ignore[arg-type]


class SparseGradient(Two):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 8, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = self.words((x[:, 0] > 0).long())
        return self.one(words).sum()


class FusedLstm(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = [self.one.weight.repeat(4, 1), self.two.weight.repeat(4, 1)]
        state = [torch.zeros(1, 4, 8), torch.zeros(1, 4, 8)]
        given = (False, 1, 0.0, True, False, False)
        return torch.lstm(x[None], state, weights, *given)[0].sum()


class ComplexWeight(Two):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.one(x) * self.phase).real.sum()


def sharing(first: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    model, both = Two(), torch.randn(16, 8)
    model.one.weight, model.two.weight = nn.Parameter(both[:8]), nn.Parameter(first(both))
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Maps, ["test_refusals.py", "each_row(", "write the loop out"]),
        (SparseGradient, ["test_refusals.py", "`words = self.words(", "sparse=False"]),
        (FusedLstm, ["test_refusals.py", "`return torch.lstm(", "torch.nn.LSTM"]),
        (ComplexWeight, ["phase", "complex64", "torch.complex"]),
        (lambda: sharing(lambda both: both[:8]), ["one.weight and two.weight", "share memory"]),
        (lambda: sharing(lambda both: both[8:]), ["one.weight and two.weight", "share memory"]),
    ],
    ids=["map", "sparse", "lstm", "complex", "the same memory", "halves of one memory"],
)
def test_refused_with_what_to_do(model: Callable[[], nn.Module], words: list[str]) -> None:
    joint = joint_graph(model(), (torch.randn(4, 8),), "models:step")
    with pytest.raises(CaptureError) as raised:
        refuse_what_cannot_run(joint, "models:step")
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)


def test_parameters_tied_by_identity_pass() -> None:
    model = Two()
    model.two.weight = model.one.weight
    joint = joint_graph(model, (torch.randn(4, 8),), "models:step")
    refuse_what_cannot_run(joint, "models:step")
    assert len(placeable(joint, OptimizerChoice(), 1, 1, 1).parameters) == 3


def test_an_lstm_is_captured_as_operators_that_can_be_spread() -> None:
    class Recurrent(Two):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cells(x.repeat(5, 1, 1))[0].sum()

    joint = joint_graph(Recurrent(), (torch.randn(4, 8),), "models:step")
    refuse_what_cannot_run(joint, "models:step")
    products = [n for n in joint.graph.nodes if n.target is torch.ops.aten.mm.default]
    assert len(products) > 5
    assert torch.backends.mkldnn.enabled
