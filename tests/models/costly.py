"""Steps with operators whose cost needs a formula: a table, attention, a Fourier transform; and
with operators that a decomposed step has, which fill, draw and gather."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from placewire.optimizer.capture.protocol import Tensors, TrainingStep

WORDS, LENGTH, HEADS, WIDTH = 50, 8, 2, 16


class Attending(nn.Module):
    """int64[batch, LENGTH] -> the scalar loss"""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HEADS * WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        y = functional.scaled_dot_product_attention(x, x, x)
        return torch.view_as_real(torch.fft.fft(y.to(torch.complex64))).square().sum()


class Filling(nn.Module):
    """float[batch, WIDTH] -> the scalar loss"""

    chosen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("chosen", torch.tensor([1, 2]))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        filled = torch.full_like(given, 2.0) + given.new_full((WIDTH,), 3.0) + torch.rand(WIDTH)
        rows = torch.ops.aten._unsafe_index.Tensor(given, [self.chosen])
        return ((given + filled) * self.weight).sum() + rows.sum()


def filling(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed + step)
        return (torch.randn(batch, WIDTH, generator=generator),)

    return TrainingStep(model=Filling(), example_inputs=batches(0), batches=batches)


def training_step(batch: int, seed: int) -> TrainingStep:
    example = (torch.zeros(batch, LENGTH, dtype=torch.int64),)

    def batches(step: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed + step)
        return (torch.randint(WORDS, (batch, LENGTH), generator=generator),)

    return TrainingStep(model=Attending(), example_inputs=example, batches=batches)
