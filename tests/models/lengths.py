"""A small transformer over texts of a few lengths, each of which is a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from placewire.optimizer.capture.protocol import Tensors, TrainingStep

WORDS, LONGEST = 31, 12
LENGTHS = (5, 8, 12)
# The lengths of the first steps; then they come again.
TURNS = (8, 12, 5, 12, 8, 8, 12)


class Texts(nn.Module):
    """It reads a part of a table and of a buffer, whose size is the text's length, and counts in
    another buffer."""

    numbers: torch.Tensor
    seen: torch.Tensor

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Embedding(LONGEST, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, WORDS)
        self.register_buffer("numbers", torch.arange(LONGEST))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(self.numbers[: words.shape[1]])
        for layer in self.layers:
            x = layer(x)
        if self.training:
            self.seen += words.shape[1]
        result: torch.Tensor = self.head(x)
        return result


class OnlyLongOnes(Texts):
    """Has a weight that short texts do not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.Linear(WORDS, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found = super().forward(words)
        result: torch.Tensor = self.long(found) if words.shape[1] == LONGEST else found
        return result


class Loss(nn.Module):
    def forward(
        self, found: torch.Tensor, words: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        right = (found.argmax(-1) == words).float()
        loss = nn.functional.cross_entropy(found.flatten(0, 1), words.flatten())
        return loss, {"accuracy": right.mean()}


def batch_of(batch: int, length: int, seed: int) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (batch, length), generator=draw)
    return words, words.roll(-1, 1)


def training_step(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        return batch_of(batch, TURNS[step % len(TURNS)], seed * 1_000 + step)

    def validation(number: int) -> Tensors:
        return batch_of(batch, LENGTHS[number % len(LENGTHS)], seed * 1_000 + 500 + number)

    examples = {str(length): batch_of(batch, length, 0) for length in LENGTHS}
    return TrainingStep(
        model=Texts(),
        example_inputs=examples["12"],
        batches=batches,
        loss=Loss(),
        validation=validation,
        buckets=examples,
    )


def wide(batch: int, seed: int) -> TrainingStep:
    """Its weights, gradients and optimizer state take 8 MiB."""
    torch.manual_seed(seed)
    return replace(training_step(batch, seed), model=Texts(width=192))


def of_another_length(batch: int, seed: int) -> TrainingStep:
    """Its third batch is as long as no bucket."""
    step = training_step(batch, seed)

    def batches(number: int) -> Tensors:
        return batch_of(batch, 7, 0) if number == 2 else step.batches(number)

    return replace(step, batches=batches)


def otherwise_drawn(batch: int, seed: int) -> TrainingStep:
    """Its third batch has another length than training_step's."""
    step = training_step(batch, seed)

    def batches(number: int) -> Tensors:
        return batch_of(batch, 12, 0) if number == 2 else step.batches(number)

    return replace(step, batches=batches)


def otherwise_validated(batch: int, seed: int) -> TrainingStep:
    """Its second batch of a validation has another length than training_step's."""
    step = training_step(batch, seed)
    return replace(step, validation=lambda number: batch_of(batch, 5, number))


def without_a_weight(batch: int, seed: int) -> TrainingStep:
    torch.manual_seed(seed)
    return replace(training_step(batch, seed), model=OnlyLongOnes())
