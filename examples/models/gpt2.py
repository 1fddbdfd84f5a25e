"""GPT-2 small that predicts the next word, on synthetic data.

Radford et al., Language Models are Unsupervised Multitask Learners (2019): 12 layers of width 768,
12 heads, normalisation before each part, 50,257 words; the output layer is the word embedding
itself (tied). Sequences of 128 tokens. 124 million parameters.

    training_step          GPT-2 small
    training_step_small    2 layers of width 32, for quick trials
"""

from __future__ import annotations

import torch
from torch import nn

from placewire.examples.models.data import sentences, step_on
from placewire.examples.models.parts import (
    SMALL,
    EachTokenLoss,
    Embeddings,
    FeedForward,
    SelfAttention,
    Sizes,
    small_initial_values,
)
from placewire.optimizer.capture.protocol import TrainingStep

BASE = Sizes(words=50_257)


class Layer(nn.Module):
    """float[batch, length, width] -> the same; normalisation before each of the two parts."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.attention = SelfAttention(sizes.width, sizes.heads, sizes.dropout, causal=True)
        self.dropout = nn.Dropout(sizes.dropout)
        self.feed_forward_norm = nn.LayerNorm(sizes.width)
        self.feed_forward = FeedForward(sizes.width, sizes.dropout)

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the result of the first of the two parts."""
        return x + self.dropout(self.attention(self.attention_norm(x)))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attended(x)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class Gpt2(nn.Module):
    """tokens int64[batch, length] -> logits float[batch, length, words]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes.words, sizes.length, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.Sequential(*(Layer(sizes) for _ in range(sizes.layers)))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        self.head.weight = self.embeddings.word.weight
        self.apply(small_initial_values)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.dropout(self.embeddings(tokens)))
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, BASE)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = sentences(batch, seed, sizes.words, sizes.length)
    return step_on(data, Gpt2(sizes), EachTokenLoss())
