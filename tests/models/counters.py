"""Models whose buffers change in ways that a count of batches does not."""

from __future__ import annotations

import torch
from torch import nn

from placewire.optimizer.capture.protocol import TrainingStep


class Scaled(nn.Module):
    """What becomes of the buffer is read by the forward half, too."""

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
    """The forward half reads the buffer as it was."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(x * (1.0 + self.count))
        self.count.add_(1.0)
        return made


def _step(model: nn.Module, batch: int) -> TrainingStep:
    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(step)
        return torch.randn(batch, 4, generator=draw), torch.randn(batch, 4, generator=draw)

    return TrainingStep(model, batches(0), batches, nn.MSELoss())


def scaled(batch: int, seed: int) -> TrainingStep:
    return _step(Scaled(), batch)


def counted(batch: int, seed: int) -> TrainingStep:
    return _step(Counted(), batch)
