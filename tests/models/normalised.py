"""Models with batch norms, whose averages are used in several ways."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placewire.optimizer.capture.protocol import TrainingStep


class Normalised(nn.Module):
    """norm: over 6 channels, called `calls` times one after the other."""

    def __init__(self, norm: nn.BatchNorm2d, calls: int = 1, kept: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.norm = norm
        self.calls, self.kept = calls, kept
        self.last = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.first(x)
        for _ in range(self.calls):
            if self.kept:
                made = torch.relu(self.norm(made))
            else:
                made = cast(torch.Tensor, checkpoint(self._normal, made, use_reentrant=False))
        loss: torch.Tensor = (self.last(made.mean(dim=(2, 3))) ** 2).mean()
        return loss

    def _normal(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(x)) * 2.0


class Reading(Normalised):
    """The loss reads the average that the batch norm has moved."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x)
        mean = self.norm.running_mean
        assert mean is not None
        return loss + 0.1 * (self.last.weight[0] * mean).sum()


def _step(model: nn.Module, batch: int) -> TrainingStep:
    def batches(number: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(number)
        return (torch.randn(batch, 3, 7, 7, generator=generator) * 2.0 + 0.5,)

    return TrainingStep(model, batches(0), batches)


def usual(batch: int, seed: int) -> TrainingStep:
    return _step(Normalised(nn.BatchNorm2d(6)), batch)


def slow(batch: int, seed: int) -> TrainingStep:
    return _step(Normalised(nn.BatchNorm2d(6, momentum=0.003)), batch)


def quick(batch: int, seed: int) -> TrainingStep:
    """1 - momentum is another number in float32 and in float64."""
    return _step(Normalised(nn.BatchNorm2d(6, momentum=0.9)), batch)


class Unread(Normalised):
    """A checkpoint repeats batch norms whose averages nobody keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = cast(torch.Tensor, checkpoint(self._gated, self.first(x), use_reentrant=False))
        loss: torch.Tensor = (self.last(made.mean(dim=(2, 3))) ** 2).mean()
        return loss

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            gate = self.norm(self.norm(x))
        return x * torch.sigmoid(gate)


def unread(batch: int, seed: int) -> TrainingStep:
    return _step(Unread(nn.BatchNorm2d(6)), batch)


def double(batch: int, seed: int) -> TrainingStep:
    step = _step(Normalised(nn.BatchNorm2d(6)).double(), batch)

    def batches(number: int) -> tuple[torch.Tensor, ...]:
        return tuple(x.double() for x in step.batches(number))

    return TrainingStep(step.model, batches(0), batches)


def without_weights(batch: int, seed: int) -> TrainingStep:
    return _step(Normalised(nn.BatchNorm2d(6, affine=False)), batch)


def called_twice(batch: int, seed: int) -> TrainingStep:
    return _step(Normalised(nn.BatchNorm2d(6), calls=2), batch)


def read_by_the_loss(batch: int, seed: int) -> TrainingStep:
    return _step(Reading(nn.BatchNorm2d(6)), batch)


def checkpointed(batch: int, seed: int) -> TrainingStep:
    return _step(Normalised(nn.BatchNorm2d(6), kept=False), batch)
