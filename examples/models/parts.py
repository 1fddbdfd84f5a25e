"""What the example Transformers share: attention, the feed-forward network, embeddings, data."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from optimizer.capture.protocol import Tensors


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
        mixed = functional.scaled_dot_product_attention(
            self._by_head(self.query(x)),
            self._by_head(self.key(x)),
            self._by_head(self.value(x)),
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
    """Normal of deviation 0.02 (Devlin et al., BERT, 2018): for `Module.apply`.

    Without it, logits of a tied output layer begin as large as the root of the width.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


PADDING = 0


def reviews(batch: int, seed: int, step: int, words: int, length: int) -> Tensors:
    """Token sequences padded to one length, and one of two classes each.

    int64[batch, length], int64[batch]. A class has its own half of the vocabulary for every second
    word: there is something to learn.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    labels = torch.randint(0, 2, (batch,), generator=generator)
    half = (words - 1) // 2
    tokens = 1 + torch.randint(0, half, (batch, length), generator=generator)
    tokens[:, ::2] += labels[:, None] * half
    lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
    return torch.where(torch.arange(length) < lengths, tokens, PADDING), labels


def sentences(batch: int, seed: int, step: int, words: int, length: int) -> Tensors:
    """Token sequences, and the same one word on: int64[batch, length] twice.

    Words follow each other by a fixed rule, of which one word in four departs.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    start = torch.randint(0, words, (batch, 1), generator=generator)
    tokens = (start + 7 * torch.arange(length + 1)) % words
    noise = torch.randint(0, words, tokens.shape, generator=generator)
    departs = torch.randint(0, 4, tokens.shape, generator=generator) == 0
    tokens = torch.where(departs, noise, tokens)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
