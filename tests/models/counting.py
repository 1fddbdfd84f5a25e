"""A model that reads a buffer and overwrites it with what no reader of it is needed for."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep
from tests.models.regression import regression_step


class Counting(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raised: torch.Tensor = self.linear(x) + self.count
        self.count.mul_(1.5)
        return raised


def training_step(batch: int, seed: int) -> TrainingStep:
    torch.manual_seed(seed)
    return regression_step(Counting(), batch)
