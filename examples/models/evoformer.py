"""The Evoformer block of AlphaFold2, which works on an alignment and on pairs of its residues.

Jumper et al., Highly accurate protein structure prediction with AlphaFold (2021), supplementary
methods 1.6, algorithms 6 to 15. An alignment is float[batch, sequences, residues, alignment width],
pairs are float[batch, residues, residues, pair width].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """heads: of the alignment's attention; that of pairs has heads of the same width. outer: the
    width of the two vectors whose outer product joins an alignment to its pairs."""

    blocks: int = 48
    alignment: int = 256
    pair: int = 128
    heads: int = 8
    outer: int = 32
    sequences: int = 128
    residues: int = 256
    row_dropout: float = 0.15
    pair_dropout: float = 0.25


class GatedAttention(nn.Module):
    """Attention along the last but one axis of float[batch, rows, length, width] -> the same, with
    a gate for each head (algorithms 7, 8, 13 and 14).

    biased: the width of float[batch, length, length, biased], from which a bias of each head is
    computed; 0 for none.
    """

    def __init__(self, width: int, heads: int, biased: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.bias_norm = nn.LayerNorm(biased) if biased else None
        self.bias = nn.Linear(biased, heads, bias=False) if biased else None

    def forward(self, x: torch.Tensor, pairs: torch.Tensor | None = None) -> torch.Tensor:
        batch, rows, length, width = x.shape
        x = self.norm(x)
        added = None
        if self.bias is not None and self.bias_norm is not None and pairs is not None:
            each = self.bias(self.bias_norm(pairs)).permute(0, 3, 1, 2)[:, None]
            added = each.expand(batch, rows, self.heads, length, length).flatten(0, 1)
        mixed = functional.scaled_dot_product_attention(
            self._by_head(self.query(x)),
            self._by_head(self.key(x)),
            self._by_head(self.value(x)),
            attn_mask=added,
        )
        mixed = mixed.transpose(1, 2).reshape(batch, rows, length, width)
        result: torch.Tensor = self.output(torch.sigmoid(self.gate(x)) * mixed)
        return result

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, length, width = x.shape
        return x.view(batch * rows, length, self.heads, width // self.heads).transpose(1, 2)


class Transition(nn.Sequential):
    """Two linear layers, four times as wide in between (algorithms 9 and 15)."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )


class OuterProductMean(nn.Module):
    """An alignment -> pairs (algorithm 10)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.alignment)
        self.left = nn.Linear(sizes.alignment, sizes.outer)
        self.right = nn.Linear(sizes.alignment, sizes.outer)
        self.output = nn.Linear(sizes.outer**2, sizes.pair)

    def forward(self, alignment: torch.Tensor) -> torch.Tensor:
        x = self.norm(alignment)
        product = torch.einsum("bsic,bsjd->bijcd", self.left(x), self.right(x))
        result: torch.Tensor = self.output(product.flatten(3) / alignment.shape[1])
        return result


class TriangleMultiplication(nn.Module):
    """Pairs -> the same, over the third residue of each triangle: along outgoing edges (algorithm
    11) or incoming ones (algorithm 12)."""

    def __init__(self, width: int, outgoing: bool) -> None:
        super().__init__()
        self.product = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.norm = nn.LayerNorm(width)
        self.left, self.left_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.right, self.right_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.product_norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, width)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        x = self.norm(pairs)
        left = torch.sigmoid(self.left_gate(x)) * self.left(x)
        right = torch.sigmoid(self.right_gate(x)) * self.right(x)
        product = self.product_norm(torch.einsum(self.product, left, right))
        result: torch.Tensor = torch.sigmoid(self.gate(x)) * self.output(product)
        return result


class Block(nn.Module):
    """(alignment, pairs) -> the same (algorithm 6), with its dropout."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        pair_heads = sizes.pair * sizes.heads // sizes.alignment
        self.of_rows = GatedAttention(sizes.alignment, sizes.heads, sizes.pair)
        self.of_columns = GatedAttention(sizes.alignment, sizes.heads)
        self.transition = Transition(sizes.alignment)
        self.outer_product = OuterProductMean(sizes)
        self.outgoing = TriangleMultiplication(sizes.pair, outgoing=True)
        self.incoming = TriangleMultiplication(sizes.pair, outgoing=False)
        self.starting = GatedAttention(sizes.pair, pair_heads, sizes.pair)
        self.ending = GatedAttention(sizes.pair, pair_heads, sizes.pair)
        self.pair_transition = Transition(sizes.pair)
        self.row_dropout = nn.Dropout(sizes.row_dropout)
        self.pair_dropout = nn.Dropout(sizes.pair_dropout)

    def forward(
        self, alignment: torch.Tensor, pairs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        alignment = alignment + self.row_dropout(self.of_rows(alignment, pairs))
        alignment = alignment + self.of_columns(alignment.transpose(1, 2)).transpose(1, 2)
        alignment = alignment + self.transition(alignment)
        pairs = pairs + self.outer_product(alignment)
        pairs = pairs + self.pair_dropout(self.outgoing(pairs))
        pairs = pairs + self.pair_dropout(self.incoming(pairs))
        pairs = pairs + self.pair_dropout(self.starting(pairs, pairs))
        turned = pairs.transpose(1, 2)
        pairs = pairs + self.pair_dropout(self.ending(turned, turned).transpose(1, 2))
        return alignment, pairs + self.pair_transition(pairs)
