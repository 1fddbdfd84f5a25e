"""Models in float64, so that rounding and a wrong formula are far apart, and one in float32."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from placewire.optimizer.capture.protocol import Tensors, TrainingStep
from tests.models import small


class Products(nn.Module):
    """float[batch, 40] -> float[]; none of its operators has a decomposition, and one of its
    parameters is a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40))
        self.other = nn.Parameter(torch.randn(3, 40))
        self.scale = nn.Parameter(torch.randn(()))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        product = given * self.weight * self.scale
        return (product + self.other.sum(0) * given).abs().sum() / given.numel()


def products(batch: int, seed: int) -> TrainingStep:
    return in_float64(products_in_float32(batch, seed))


def products_in_float32(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return (torch.randn(batch, 40, generator=generator),)

    return TrainingStep(Products(), batches(0), batches)


class Normed(nn.Module):
    """float[batch, 6] -> float[]; with a batch norm, whose running averages are values, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(given)
        return found.square().mean()


def normed(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return (torch.randn(batch, 6, generator=generator),)

    return in_float64(TrainingStep(Normed(), batches(0), batches))


def mlp(batch: int, seed: int) -> TrainingStep:
    return in_float64(small.mlp(batch, seed))


def vgg(batch: int, seed: int) -> TrainingStep:
    """With batch normalisation."""
    return in_float64(small.vgg_batch_norm(batch, seed))


def bert(batch: int, seed: int) -> TrainingStep:
    return in_float64(small.bert(batch, seed))


def gpt2(batch: int, seed: int) -> TrainingStep:
    """Its attention is one operator."""
    return in_float64(small.gpt2_fused(batch, seed))


def in_float64(step: TrainingStep) -> TrainingStep:
    def wide(inputs: Tensors) -> Tensors:
        return tuple(x.double() if x.is_floating_point() else x for x in inputs)

    return replace(
        step,
        model=step.model.double(),
        example_inputs=wide(step.example_inputs),
        batches=lambda number: wide(step.batches(number)),
    )
