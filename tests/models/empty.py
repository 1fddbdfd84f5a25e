"""A model that joins its input with a tensor of no elements, as T5's cache begins."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep
from tests.models.regression import regression_step


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.first(x)[:, :0]
        joined: torch.Tensor = self.second(torch.cat([before, torch.tensor([]), x], dim=-1))
        return joined


def training_step(batch: int, seed: int) -> TrainingStep:
    torch.manual_seed(seed)
    return regression_step(Joined(), batch)
