"""A Transformer with mixtures of experts that predicts the next word, on synthetic data.

Every second layer has eight feed-forward networks, of which each token takes two (Lepikhin et al.,
GShard, 2020, algorithm 1; Fedus, Zoph and Shazeer, Switch Transformers, 2022, sections 2.1
and 2.2). How many tokens an expert takes is fixed, and masks say which, so that all shapes are
known before the step runs: every expert's operators can be placed. 8 layers of width 512, 32,000
words, sequences of 128 tokens. 117 million parameters, of which 67 million are experts.

    training_step          as above
    training_step_small    2 layers of width 32 with 4 experts, for quick trials
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import nn

from placewire.examples.models import parts
from placewire.examples.models.data import sentences, step_on
from placewire.examples.models.gpt2 import Layer
from placewire.examples.models.parts import (
    EachTokenLoss,
    Embeddings,
    FeedForward,
    small_initial_values,
)
from placewire.optimizer.capture.protocol import TrainingStep


@dataclass(frozen=True)
class Sizes(parts.Sizes):
    """chosen: experts that a token takes. room: an expert takes this many times its even share."""

    experts: int = 8
    chosen: int = 2
    room: float = 1.25

    @property
    def capacity(self) -> int:
        """The most tokens of one sequence that an expert takes; further tokens skip it."""
        return ceil(self.room * self.chosen * self.length / self.experts)


BASE = Sizes(words=32_000, layers=8, width=512, heads=8)
SMALL = Sizes(words=101, layers=2, width=32, heads=4, length=16, experts=4)

# The weight of the experts' balance beside the loss of the words (Switch, section 2.2).
BALANCE = 0.01


class Mixture(nn.Module):
    """float[batch, length, width] -> the same, and how uneven the experts' loads are (1 if even).

    Earlier tokens of a sequence are served first, so that no token depends on later ones.
    """

    numbers: torch.Tensor
    places: torch.Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.chosen = sizes.chosen
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.experts = nn.ModuleList(
            FeedForward(sizes.width, sizes.dropout) for _ in range(sizes.experts)
        )
        self.register_buffer("numbers", torch.arange(sizes.experts), persistent=False)
        self.register_buffer("places", torch.arange(sizes.capacity), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = torch.softmax(self.router(x), dim=-1)
        weights, taken = self._routes(chances)
        inputs = torch.einsum("blec,blw->becw", taken, x)
        outputs = torch.stack([f(inputs[:, e]) for e, f in enumerate(self.experts)], dim=1)
        return torch.einsum("blec,becw->blw", weights, outputs), self._balance(chances)

    def _routes(self, chances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Says which token goes to which place of which expert: float[batch, length, experts,
        capacity] twice, first with the router's weights, then as 0 or 1."""
        batch, length, experts = chances.shape
        top, numbers = chances.topk(self.chosen, dim=-1)
        top = top / top.sum(dim=-1, keepdim=True)
        choice = (numbers[..., None] == self.numbers).to(chances.dtype)
        # A token's place in an expert's queue is the number of tokens before it.
        queue = choice.view(batch, length * self.chosen, experts)
        place = (queue.cumsum(dim=1) - queue).view_as(choice)
        taken = choice[..., None] * (place[..., None] == self.places).to(chances.dtype)
        return (top[..., None, None] * taken).sum(dim=2), taken.sum(dim=2)

    def _balance(self, chances: torch.Tensor) -> torch.Tensor:
        """Switch, equations 4 to 6: experts times the product of load and mean chance, summed."""
        first = (chances.argmax(dim=-1)[..., None] == self.numbers).to(chances.dtype)
        return (first.mean(dim=(0, 1)) * chances.mean(dim=(0, 1))).sum() * len(self.experts)


class MixtureLayer(Layer):
    """float[batch, length, width] -> the same, and the balance of its experts."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.feed_forward = Mixture(sizes)  # type: ignore[assignment]

    def forward(  # type: ignore[override]
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.attended(x)
        y, balance = self.feed_forward(self.feed_forward_norm(x))
        return x + y, balance


class MixtureTransformer(nn.Module):
    """tokens int64[batch, length] -> logits float[batch, length, words], and the mean balance"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        pairs = range(sizes.layers // 2)
        self.embeddings = Embeddings(sizes.words, sizes.length, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.dense = nn.ModuleList(Layer(sizes) for _ in pairs)
        self.mixtures = nn.ModuleList(MixtureLayer(sizes) for _ in pairs)
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        self.apply(small_initial_values)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.dropout(self.embeddings(tokens))
        balances = []
        for dense, mixture in zip(self.dense, self.mixtures, strict=True):
            x, balance = mixture(dense(x))
            balances.append(balance)
        return self.head(self.norm(x)), torch.stack(balances).mean()


class LossAndBalance(EachTokenLoss):
    def forward(  # type: ignore[override]
        self, outputs: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor
    ) -> torch.Tensor:
        logits, balance = outputs
        return super().forward(logits, targets) + BALANCE * balance


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, BASE)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = sentences(batch, seed, sizes.words, sizes.length)
    return step_on(data, MixtureTransformer(sizes), LossAndBalance())
