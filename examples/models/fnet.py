"""FNet that classifies reviews into two classes, on synthetic data.

Lee-Thorp, Ainslie, Eckstein and Ontañón, FNet: Mixing Tokens with Fourier Transforms (2021): BERT's
layers with attention replaced by the real part of a two-dimensional Fourier transform, which has no
parameters. 12 layers of width 768, 32,000 words, sequences of 128 tokens. 83 million parameters.

    training_step          FNet-base
    training_step_small    2 layers of width 32, for quick trials
"""

from __future__ import annotations

import torch
from torch import nn

from placewire.examples.models.data import reviews, step_on
from placewire.examples.models.parts import (
    SMALL,
    Embeddings,
    FeedForward,
    Sizes,
    small_initial_values,
)
from placewire.optimizer.capture.protocol import TrainingStep

BASE = Sizes(words=32_000)


class Layer(nn.Module):
    """float[batch, length, width] -> the same: mixing, then the feed-forward network."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.mixing_norm = nn.LayerNorm(sizes.width)
        self.feed_forward = FeedForward(sizes.width, sizes.dropout)
        self.feed_forward_norm = nn.LayerNorm(sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.fft.fft2(x, dim=(-2, -1)).real
        x = self.mixing_norm(x + mixed)
        result: torch.Tensor = self.feed_forward_norm(x + self.feed_forward(x))
        return result


class FNet(nn.Module):
    """tokens int64[batch, length] -> logits float[batch, 2]. As published, padding is mixed too."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes.words, sizes.length, sizes.width)
        self.norm = nn.LayerNorm(sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.Sequential(*(Layer(sizes) for _ in range(sizes.layers)))
        self.pooler = nn.Linear(sizes.width, sizes.width)
        self.classifier = nn.Linear(sizes.width, 2)
        self.apply(small_initial_values)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.dropout(self.norm(self.embeddings(tokens))))
        logits: torch.Tensor = self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, BASE)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = reviews(batch, seed, sizes.words, sizes.length)
    return step_on(data, FNet(sizes), nn.CrossEntropyLoss())
