"""A step of many small weights that end within a vector, and of a larger one of whole vectors.

Elements beyond a weight's last whole vector are few, and a fused optimizer rounds a part of them
otherwise than those of whole vectors: hence many weights.
"""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import Tensors, TrainingStep

WEIGHTS, SIZE, OUTPUTS = 24, 63, 192


class OddSizes(nn.Module):
    """float[batch, SIZE] -> float[batch, OUTPUTS]"""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.randn(SIZE) for _ in range(WEIGHTS))
        self.out = nn.Linear(SIZE, OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for scale in self.scales:
            y = y + torch.sin(x * scale)
        result: torch.Tensor = self.out(y)
        return result


def training_step(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        draw = torch.Generator().manual_seed(seed * 7919 + step)
        inputs = torch.randn(batch, SIZE, generator=draw)
        return inputs, torch.randn(batch, OUTPUTS, generator=draw)

    return TrainingStep(OddSizes(), batches(0), batches, nn.MSELoss())
