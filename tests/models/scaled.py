"""A model that scales its loss for fp16, which a captured step cannot."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu")

    def forward(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.scaler.scale(nn.functional.mse_loss(result, target))
        return scaled


def training_step(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(step)
        return torch.randn(batch, 4, generator=draw), torch.randn(batch, 4, generator=draw)

    return TrainingStep(nn.Linear(4, 4), batches(0), batches, Scaled())
