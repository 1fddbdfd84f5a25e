"""Steps that are validated. In evaluation mode their models compute something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from placewire.optimizer.capture.protocol import LossAndMetrics, Tensors, TrainingStep

WORDS, LENGTH = 32, 8
# 1 - NEVER is 1: nothing is dropped in training, so that it equals eager PyTorch.
NEVER = 1e-30


class Net(nn.Module):
    """Tied weights, batch norm, dropout, a buffer that only evaluation reads, and a branch."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout)) for _ in "ab"
        )
        self.norm = nn.BatchNorm1d(LENGTH)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.temperature = nn.Buffer(torch.tensor(0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.words(tokens))
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        logits: torch.Tensor = self.head(hidden)
        return logits if self.training else logits * self.temperature


class Loss(nn.Module):
    def forward(self, logits: torch.Tensor, tokens: torch.Tensor) -> LossAndMetrics:
        right = (logits.argmax(-1) == tokens).float()
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        return loss, {"accuracy": right.mean()}


def _tokens(batch: int, seed: int, number: int) -> Tensors:
    draw = torch.Generator().manual_seed(seed * 7919 + number)
    tokens = torch.randint(WORDS, (batch, LENGTH), generator=draw)
    return tokens, tokens.roll(1, 1)


def _step(model: nn.Module, batch: int, seed: int, **more: Any) -> TrainingStep:
    return TrainingStep(
        model=model,
        example_inputs=_tokens(batch, seed, 0),
        batches=lambda number: _tokens(batch, seed, number),
        loss=Loss(),
        **{"validation": lambda number: _tokens(batch, seed + 1, number), **more},
    )


def training_step(batch: int, seed: int) -> TrainingStep:
    return _step(Net(16, NEVER), batch, seed)


def dropping(batch: int, seed: int) -> TrainingStep:
    return _step(Net(16, 0.5), batch, seed)


def dropping_unvalidated(batch: int, seed: int) -> TrainingStep:
    return _step(Net(16, 0.5), batch, seed, validation=None)


def wide(batch: int, seed: int) -> TrainingStep:
    """Its weights are large enough to be cut into shards, or are joined with others."""
    return _step(Net(64, NEVER), batch, seed)


def another_shape(batch: int, seed: int) -> TrainingStep:
    return _step(Net(16, NEVER), batch, seed, validation=lambda k: _tokens(batch + 1, seed, k))


def failing(batch: int, seed: int) -> TrainingStep:
    def validation(number: int) -> Tensors:
        raise FileNotFoundError("held_out.txt")

    return _step(Net(16, NEVER), batch, seed, validation=validation)


class Odd(Net):
    """what: happens in evaluation mode alone."""

    def __init__(self, what: Callable[[Odd, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(16, NEVER)
        self.what = what
        self.other = nn.Linear(WORDS, WORDS)
        self.seen = nn.Buffer(torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens)
        return logits if self.training else self.what(self, logits)


def _counts(model: Odd, logits: torch.Tensor) -> torch.Tensor:
    model.seen.add_(1)
    return logits


def writing(batch: int, seed: int) -> TrainingStep:
    return _step(Odd(_counts), batch, seed)


def reading_more(batch: int, seed: int) -> TrainingStep:
    return _step(Odd(lambda model, logits: model.other(logits)), batch, seed)


def branching(batch: int, seed: int) -> TrainingStep:
    return _step(Odd(lambda model, logits: logits if logits.sum() > 0 else -logits), batch, seed)


def of_one_batch(batch: int, seed: int) -> TrainingStep:
    held_out = [_tokens(batch, seed, 0)]
    return _step(Net(16, NEVER), batch, seed, validation=lambda number: held_out[number])
