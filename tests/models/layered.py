"""Models whose layers lie in lists of all sorts."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep
from tests.models.checkpointed import Checkpointed

WIDTH = 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spread, self.joined = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.joined(torch.tanh(self.spread(x)))
        return result


class Shared(nn.Module):
    """One layer that is called several times, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = nn.ModuleList([Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.groups[0](x)
        return x


class Counting(nn.Module):
    """It writes a buffer, and reads it before and after that."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = self.layer(x) + self.scale
        self.scale.mul_(0.75).add_(moved.detach().mean(0))
        return torch.tanh(moved * self.scale)


class Viewing(nn.Module):
    """The second of two layers makes nothing: it hands on a view of what the first one made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Unflatten(1, (4, WIDTH // 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x).flatten(1)
        return result


class Two(nn.Module):
    """No list at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x))
        return result


def _step(model: nn.Module, batch: int) -> TrainingStep:
    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(step)
        return torch.randn(batch, WIDTH, generator=draw), torch.randn(batch, WIDTH, generator=draw)

    return TrainingStep(model, batches(0), batches, nn.MSELoss())


def inner(batch: int, seed: int) -> TrainingStep:
    """The layers are a list in another one, of which they are nearly all."""
    body = nn.Sequential(*(Layer() for _ in range(4)))
    return _step(nn.Sequential(nn.Linear(WIDTH, WIDTH), body, nn.Linear(WIDTH, WIDTH)), batch)


def _thin() -> list[nn.Module]:
    """Sixteen layers that hold nothing but what they hand on."""
    both = ((nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8))
    return [layer for two in both for layer in two]


def thin(batch: int, seed: int) -> TrainingStep:
    return _step(nn.Sequential(*_thin()), batch)


def some_checkpointed(batch: int, seed: int) -> TrainingStep:
    """Every fifth of the sixteen has a checkpoint of its own."""
    layers = (
        Checkpointed(layer, reentrant=False) if number % 5 == 0 else layer
        for number, layer in enumerate(_thin())
    )
    return _step(nn.Sequential(*layers), batch)


def viewing(batch: int, seed: int) -> TrainingStep:
    return _step(Viewing(), batch)


def dropping_and_normalising(batch: int, seed: int) -> TrainingStep:
    torch.manual_seed(seed)
    layers = (
        nn.Sequential(nn.BatchNorm1d(WIDTH), Layer(), nn.Dropout(0.1), nn.Tanh()) for _ in range(4)
    )
    return _step(nn.Sequential(*layers), batch)


def counting(batch: int, seed: int) -> TrainingStep:
    torch.manual_seed(seed)
    return _step(nn.Sequential(*(Counting() for _ in range(4))), batch)


def shared(batch: int, seed: int) -> TrainingStep:
    return _step(Shared(), batch)


def no_list(batch: int, seed: int) -> TrainingStep:
    return _step(Two(), batch)
