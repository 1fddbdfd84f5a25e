"""Models for gradient scalers: some scale their loss themselves, which is refused."""

from __future__ import annotations

from dataclasses import replace

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


def overflowing(batch: int, seed: int) -> TrainingStep:
    """The gradients of every fifth step are not finite."""
    step = unscaled(batch, seed)

    def batches(number: int) -> tuple[torch.Tensor, ...]:
        inputs, target = step.batches(number)
        return inputs * 1e30 if number % 5 == 4 else inputs, target

    return replace(step, batches=batches)


def half(batch: int, seed: int) -> TrainingStep:
    """All of it is of float16."""
    step = unscaled(batch, seed)

    def batches(number: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.half() for tensor in step.batches(number))

    return replace(step, model=step.model.half(), example_inputs=batches(0), batches=batches)


class Reporting(nn.Module):
    def forward(
        self, result: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = nn.functional.mse_loss(result, target)
        return loss, {"skipped": loss.detach()}


def reporting(batch: int, seed: int) -> TrainingStep:
    """A metric of its own has the name of one of the scaler's."""
    return replace(unscaled(batch, seed), loss=Reporting())


def unscaled(batch: int, seed: int) -> TrainingStep:
    return _step(nn.MSELoss(), batch, seed)
