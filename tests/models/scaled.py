"""Models that scale their loss for fp16, which a captured step cannot."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from placewire.optimizer.capture.protocol import TrainingStep


class Scaled(nn.Module):
    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        super().__init__()
        self.scaler = scaler

    def forward(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.scaler.scale(nn.functional.mse_loss(result, target))
        return scaled


def _step(loss: nn.Module, batch: int, seed: int) -> TrainingStep:
    torch.manual_seed(seed)

    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(step)
        return torch.randn(batch, 4, generator=draw), torch.randn(batch, 4, generator=draw)

    return TrainingStep(nn.Linear(4, 4), batches(0), batches, loss)


def training_step(batch: int, seed: int) -> TrainingStep:
    return _step(Scaled(torch.amp.GradScaler("cpu")), batch, seed)


def sharded(batch: int, seed: int) -> TrainingStep:
    return _step(Scaled(ShardedGradScaler("cpu")), batch, seed)


def disabled(batch: int, seed: int) -> TrainingStep:
    return _step(Scaled(torch.amp.GradScaler("cpu", enabled=False)), batch, seed)


def disabled_sharded(batch: int, seed: int) -> TrainingStep:
    return _step(Scaled(ShardedGradScaler("cpu", enabled=False)), batch, seed)


def without_cuda(batch: int, seed: int) -> TrainingStep:
    """PyTorch disables this scaler itself on a machine without CUDA."""
    return _step(Scaled(torch.amp.GradScaler("cuda")), batch, seed)


def unscaled(batch: int, seed: int) -> TrainingStep:
    return _step(nn.MSELoss(), batch, seed)
