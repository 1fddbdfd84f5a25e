"""BERT-base that classifies reviews into two classes, on synthetic data.

Devlin, Chang, Lee and Toutanova, BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding (2018): 12 layers of width 768, 12 heads, 30,522 words; sequences of 128 tokens with a
padding mask, and a class read from the first token. 109 million parameters.

    training_step          BERT-base
    training_step_small    2 layers of width 32, for quick trials
"""

from __future__ import annotations

import torch
from torch import nn

from placewire.examples.models.data import PADDING, reviews, step_on
from placewire.examples.models.parts import (
    SMALL,
    Embeddings,
    FeedForward,
    SelfAttention,
    Sizes,
    small_initial_values,
)
from placewire.optimizer.capture.protocol import TrainingStep

BASE = Sizes(words=30_522)


class Layer(nn.Module):
    """Normalisation after each of the two parts, as published."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = SelfAttention(sizes.width, sizes.heads, sizes.dropout)
        self.dropout = nn.Dropout(sizes.dropout)
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.feed_forward = FeedForward(sizes.width, sizes.dropout)
        self.feed_forward_norm = nn.LayerNorm(sizes.width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        result: torch.Tensor = self.feed_forward_norm(x + self.feed_forward(x))
        return result


class Bert(nn.Module):
    """tokens int64[batch, length], 0 is padding -> logits float[batch, 2]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes.words, sizes.length, sizes.width)
        self.segment = nn.Parameter(torch.zeros(sizes.width))
        self.norm = nn.LayerNorm(sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.pooler = nn.Linear(sizes.width, sizes.width)
        self.classifier = nn.Linear(sizes.width, 2)
        self.apply(small_initial_values)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # A review is a single segment, whose embedding is added to every token.
        x = self.dropout(self.norm(self.embeddings(tokens) + self.segment))
        mask = torch.where(tokens == PADDING, -1e9, 0.0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        logits: torch.Tensor = self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, BASE)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = reviews(batch, seed, sizes.words, sizes.length)
    return step_on(data, Bert(sizes), nn.CrossEntropyLoss())
