"""Models whose layers lie in lists of all sorts."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep

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


def thin(batch: int, seed: int) -> TrainingStep:
    """Sixteen layers that hold nothing but what they hand on."""
    both = ((nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8))
    return _step(nn.Sequential(*(layer for two in both for layer in two)), batch)


def shared(batch: int, seed: int) -> TrainingStep:
    return _step(Shared(), batch)


def no_list(batch: int, seed: int) -> TrainingStep:
    return _step(Two(), batch)
