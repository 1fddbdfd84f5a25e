"""A small network of two branches that can run at the same time; for tests and first trials."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import Tensors, TrainingStep


class TwoBranches(nn.Module):
    """float[batch, 64] -> float[batch, 10]: two branches of equal cost, added."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.left = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.ReLU()
        )
        self.right = nn.Sequential(
            nn.Linear(64, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, width), nn.Tanh()
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.left(x) + self.right(x))
        return result


def training_step(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        x = torch.randn(batch, 64, generator=generator)
        return x, (x[:, :10].sum(dim=1) > 0).long()

    return TrainingStep(
        model=TwoBranches(),
        example_inputs=batches(0),
        batches=batches,
        loss=nn.CrossEntropyLoss(),
        validation=lambda number: batches(-1 - number),  # which no step has
    )
