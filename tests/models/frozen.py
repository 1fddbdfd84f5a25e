"""A model whose batch norm is frozen, so that its averages are constants of the step."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import Tensors, TrainingStep


class Frozen(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8).eval()
        self.last = nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.tanh(self.norm(self.first(x))) * self.scale)
        return result


def training_step(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        draw = torch.Generator().manual_seed(step)
        return torch.randn(batch, 6, generator=draw), torch.randint(3, (batch,), generator=draw)

    return TrainingStep(Frozen(), batches(0), batches, nn.CrossEntropyLoss())
