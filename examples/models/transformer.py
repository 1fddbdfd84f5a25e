"""A Transformer that translates, on synthetic data.

Vaswani et al., Attention Is All You Need (2017), section 3, with learned positions and GELU: an
encoder, and a decoder that attends to its own words and to the encoded sentence. The sizes are
those that Celeritas is measured with (section 6.2.1): 12 layers each, 16 heads, width 2048; it does
not state the 32,000 words, shared by both languages and by the output layer (section 3.4), and the
128 words per sentence. 1.48 thousand million parameters.

    training_step          as above
    training_step_base     6 layers each of width 512 with 8 heads, as Vaswani's base model
    training_step_small    2 layers each of width 32, for quick trials
"""

from __future__ import annotations

import torch
from torch import nn

from placewire.examples.models import parts
from placewire.examples.models.data import step_on, translations
from placewire.examples.models.parts import (
    EachTokenLoss,
    Embeddings,
    FeedForward,
    SelfAttention,
    Sizes,
    small_initial_values,
)
from placewire.optimizer.capture.protocol import TrainingStep

LARGE = Sizes(words=32_000, width=2048, heads=16)
BASE = Sizes(words=32_000, layers=6, width=512, heads=8)
SMALL = parts.SMALL


class EncoderLayer(nn.Module):
    """float[batch, length, width] -> the same; normalisation after each of the two parts."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = SelfAttention(sizes.width, sizes.heads, sizes.dropout)
        self.dropout = nn.Dropout(sizes.dropout)
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.feed_forward = FeedForward(sizes.width, sizes.dropout)
        self.feed_forward_norm = nn.LayerNorm(sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.feed_forward_norm(x + self.feed_forward(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """float[batch, length, width] and the encoded sentence -> float[batch, length, width]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = SelfAttention(sizes.width, sizes.heads, sizes.dropout, causal=True)
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.source = SelfAttention(sizes.width, sizes.heads, sizes.dropout)
        self.source_norm = nn.LayerNorm(sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.feed_forward = FeedForward(sizes.width, sizes.dropout)
        self.feed_forward_norm = nn.LayerNorm(sizes.width)

    def forward(self, x: torch.Tensor, sentence: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        x = self.source_norm(x + self.dropout(self.source.mixed(x, sentence)))
        return self.feed_forward_norm(x + self.feed_forward(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """sentence int64[batch, length], translation behind a BEGIN int64[batch, length] -> logits
    float[batch, length, words]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes.words, sizes.length, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoder = nn.Sequential(*(EncoderLayer(sizes) for _ in range(sizes.layers)))
        self.decoder = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        self.head.weight = self.embeddings.word.weight
        self.apply(small_initial_values)

    def forward(self, sentence: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        encoded = self.encoder(self.dropout(self.embeddings(sentence)))
        x = self.dropout(self.embeddings(before))
        for layer in self.decoder:
            x = layer(x, encoded)
        logits: torch.Tensor = self.head(x)
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, LARGE)


def training_step_base(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, BASE)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = translations(batch, seed, sizes.words, sizes.length)
    return step_on(data, Transformer(sizes), EachTokenLoss())
