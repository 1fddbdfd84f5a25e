"""Steps that report metrics beside their loss, and the same steps without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from placewire.optimizer.capture.protocol import LossAndMetrics, Tensors, TrainingStep

WIDTH, CLASSES = 6, 3
NAMES = ("accuracy", "tokens", "any/right", "auxiliary", "scale", "noise")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        found: torch.Tensor = self.last(self.dropout(hidden)) * self.scale
        return found


class WithMetrics(nn.Module):
    """The last of the inputs are classes, of which 0 is padding. `noise` draws random numbers
    before training does, and `scale` is a parameter itself, which the step overwrites."""

    def __init__(self, model: Net, report: bool) -> None:
        super().__init__()
        self.model, self.report = model, report

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> LossAndMetrics:
        noise = torch.rand_like(x).mean() if self.report else None
        logits = self.model(x)
        loss = functional.cross_entropy(logits, y)
        auxiliary = logits.square().mean()
        total = loss + 0.01 * auxiliary
        if noise is None:
            return total
        right = logits.argmax(-1) == y
        return total, {
            "accuracy": right.float().mean(),
            "tokens": (y != 0).sum(),
            "any/right": right.any(),
            "auxiliary": auxiliary,
            "scale": self.model.scale,
            "noise": noise,
        }


def _batch(batch: int, seed: int, step: int) -> Tensors:
    draw = torch.Generator().manual_seed(seed * 7919 + step)
    classes = torch.randint(CLASSES, (batch,), generator=draw)
    return torch.randn(batch, WIDTH, generator=draw) + classes[:, None], classes


def _step(model: nn.Module, batch: int, seed: int, loss: nn.Module | None = None) -> TrainingStep:
    return TrainingStep(model, _batch(batch, seed, 0), lambda step: _batch(batch, seed, step), loss)


def reported(batch: int, seed: int) -> TrainingStep:
    return _step(WithMetrics(Net(), report=True), batch, seed)


def silent(batch: int, seed: int) -> TrainingStep:
    return _step(WithMetrics(Net(), report=False), batch, seed)


def without_dropout(batch: int, seed: int) -> TrainingStep:
    model = WithMetrics(Net(), report=True)
    model.model.dropout.p = 1e-30
    return _step(model, batch, seed)


class Returns(nn.Module):
    """A loss that returns it with something of this test's choice."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def forward(self, result: torch.Tensor, classes: torch.Tensor) -> Any:
        loss = functional.cross_entropy(result, classes)
        return self.what(loss, result)


def _metrics(**some: Any) -> Any:
    def what(loss: torch.Tensor, result: torch.Tensor) -> tuple[torch.Tensor, Mapping[str, Any]]:
        values = {name: value(result) if callable(value) else value for name, value in some.items()}
        return loss, values

    return what


WRONG: dict[str, Any] = {
    "list": lambda loss, result: [loss, result.mean(), result.sum()],
    "pair": lambda loss, result: (loss, result.mean()),
    "dictionary": lambda loss, result: {"loss": loss, "mean": result.mean()},
    "order": lambda loss, result: ({"mean": result.mean()}, loss),
    "nested": _metrics(a=lambda result: {"b": result.mean()}),
    "number": _metrics(accuracy=0.5),
    "vector": _metrics(accuracy=lambda result: result.mean(0)),
    "complex": _metrics(accuracy=lambda result: torch.fft.fft(result).mean()),
    "loss": _metrics(loss=lambda result: result.mean()),
    # Right, where gradients are not clipped.
    "norm": _metrics(gradient_norm=lambda result: result.mean()),
    "name": lambda loss, result: (loss, {"a b": result.mean()}),
    "key": lambda loss, result: (loss, {1: result.mean()}),
    "many": lambda loss, result: (loss, {f"m{k}": result.mean() for k in range(33)}),
}


def __getattr__(name: str) -> Any:
    """`wrong_vector` and so on."""
    if (what := WRONG.get(name.removeprefix("wrong_"))) is None:
        raise AttributeError(name)
    return lambda batch, seed: _step(Net(), batch, seed, Returns(what))
