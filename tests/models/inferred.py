"""Models that infer otherwise than they train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from placewire.optimizer.capture.protocol import Tensors, TrainingStep


class Several(nn.Module):
    """float[batch, 6] -> two tensors in a dictionary, of which one is a view of the other's memory;
    dropout and batch norm do something else in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 4)

    def forward(self, given: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.head(self.layers(given).relu())
        return {"scores": found, "first": found[:, :1]}


class Loss(nn.Module):
    def forward(self, results: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(results["scores"], target)


class ReturnsNumber(Several):
    def forward(self, given: torch.Tensor) -> dict[str, Any]:
        return {**super().forward(given), "count": 3}


class PassesOn(Several):
    def forward(self, given: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**super().forward(given), "given": given.detach()}


class PassesParameterOn(Several):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, given: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**super().forward(given * self.scale), "scale": self.scale}


class Rectified(nn.Module):
    """Has no parameter; and returns None, as models do for what they did not compute."""

    def forward(self, given: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, given.relu()


class Nothing(Several):
    def forward(self, given: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}


def several(batch: int, seed: int) -> TrainingStep:
    return _step(Several(), batch, seed)


def returns_number(batch: int, seed: int) -> TrainingStep:
    return _step(ReturnsNumber(), batch, seed)


def passes_on(batch: int, seed: int) -> TrainingStep:
    return _step(PassesOn(), batch, seed)


def passes_parameter_on(batch: int, seed: int) -> TrainingStep:
    return _step(PassesParameterOn(), batch, seed)


def rectified(batch: int, seed: int) -> TrainingStep:
    return _step(Rectified(), batch, seed)


def returns_nothing(batch: int, seed: int) -> TrainingStep:
    return _step(Nothing(), batch, seed)


def _step(model: nn.Module, batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        given = torch.randn(batch, 6, generator=generator)
        return given, torch.randint(4, (batch,), generator=generator)

    return TrainingStep(model, batches(0), batches, Loss())
