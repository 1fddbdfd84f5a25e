"""A model that reads a buffer and overwrites it with what no reader of it is needed for."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep


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

    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(step)
        return torch.randn(batch, 4, generator=draw), torch.randn(batch, 4, generator=draw)

    return TrainingStep(Counting(), batches(0), batches, nn.MSELoss())
