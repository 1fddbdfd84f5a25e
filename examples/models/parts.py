"""Sizes and parts of Transformers, and initial values, that the examples share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Transformer; the defaults are those of the published base models."""

    words: int
    layers: int = 12
    width: int = 768
    heads: int = 12
    length: int = 128
    dropout: float = 0.1


# For quick trials: the same structure in small sizes.
SMALL = Sizes(words=101, layers=2, width=32, heads=4, length=16)


class SelfAttention(nn.Module):
    """Multi-head attention, float[batch, length, width] -> the same (Vaswani et al., Attention Is
    All You Need, 2017, section 3.2), with dropout on the attention weights.

    mask: float[batch, 1, 1, length], added to the scores; causal: no position sees later ones.
    """

    def __init__(self, width: int, heads: int, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.mixed(x, x, mask)

    def mixed(
        self, x: torch.Tensor, source: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attends from each position of x to `source`, float[batch, any length, width]."""
        mixed = functional.scaled_dot_product_attention(
            self._by_head(self.query(x)),
            self._by_head(self.key(source)),
            self._by_head(self.value(source)),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two linear layers, four times as wide in between, with GELU; dropout at the end."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )


class Embeddings(nn.Module):
    """int64[batch, length] -> float[batch, length, width]: words and learned positions, added."""

    positions: torch.Tensor

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.position = nn.Embedding(length, width)
        self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.word(tokens) + self.position(self.positions)
        return result


class EachTokenLoss(nn.Module):
    """Cross-entropy of logits float[batch, length, words] and targets int64[batch, length]."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def small_initial_values(module: nn.Module) -> None:
    """Draws weights with standard deviation 0.02 (Devlin et al., BERT, 2018); for `Module.apply`.

    With torch's defaults logits of a tied output layer begin as large as the root of the width.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def he_initial_values(module: nn.Module) -> None:
    """Sets the values of He et al., Delving Deep into Rectifiers (2015); for `Module.apply` on deep
    convolutional networks, where signals fade to nothing with torch's defaults."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
