"""Models whose buffers change in ways that a count of batches does not."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep
from tests.models.regression import regression_step


class Scaled(nn.Module):
    """The forward half reads the new value of the buffer."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = self.scale * 0.9 + 0.2
        made: torch.Tensor = torch.relu(self.linear(x)) * new
        self.scale.copy_(new * self.linear.weight.detach().mean())
        return made


class Counted(nn.Module):
    """The forward half reads the old value of the buffer."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(x * (1.0 + self.count))
        self.count.add_(1.0)
        return made


def scaled(batch: int, seed: int) -> TrainingStep:
    return regression_step(Scaled(), batch)


def counted(batch: int, seed: int) -> TrainingStep:
    return regression_step(Counted(), batch)
