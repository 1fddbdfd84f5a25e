"""Steps with features that are easily got wrong: tied weights, dropout, views, buffers,
constants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from placewire.optimizer.capture.protocol import Tensors, TrainingStep

WORDS, LENGTH, WIDTH = 40, 12, 32


class Hard(nn.Module):
    """int64[batch, LENGTH] -> logits float[batch, LENGTH, WORDS]"""

    mask: torch.Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.dropout = nn.Dropout(dropout)
        # No bias: softmax does not depend on the key's, and AdamW would follow the sign of noise.
        self.query_and_key = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        # Its gradient is a sum over the result of dropout's backward, which chooses its own
        # strides.
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.words.weight
        self.unused = nn.Linear(3, 3)
        self.fixed = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -10.0).triu(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.words(tokens)) * self.fixed * torch.tensor([0.5, 1.5] * (WIDTH // 2))
        query, key = self.query_and_key(x).chunk(2, dim=-1)
        x = x + torch.softmax(query @ key.transpose(1, 2) + self.mask, dim=-1) @ x
        x = self.norm(x.transpose(1, 2))
        x = functional.gelu(self.mix(x)) + self.shift[:, None]
        x = self.dropout(x).transpose(1, 2)
        result: torch.Tensor = self.out(x)
        return result


class Loss(nn.Module):
    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _batch(batch: int, seed: int, step: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed * 7919 + step)
    tokens = torch.randint(0, WORDS, (batch, LENGTH), generator=generator)
    return tokens, (tokens + 1) % WORDS


def _step(batch: int, seed: int, dropout: float) -> TrainingStep:
    return TrainingStep(
        model=Hard(dropout),
        example_inputs=_batch(batch, seed, 0),
        batches=lambda step: _batch(batch, seed, step),
        loss=Loss(),
    )


def training_step(batch: int, seed: int) -> TrainingStep:
    return _step(batch, seed, dropout=0.3)


def without_dropout(batch: int, seed: int) -> TrainingStep:
    """The mask is drawn, but is all ones, so that the step is comparable with eager training."""
    return _step(batch, seed, dropout=0.0)


class _Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Branches(_Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if y.sum() > 0:
            y = y * 2
        return y.sum()


class Selects(_Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[x[:, 0] > 0].sum()


class ReadsNumber(_Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum() * x[0, 0].item()


class NotScalar(_Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class WritesInput(_Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return self.linear(x).sum()


class NothingToTrain(_Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class WrongShapes(_Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x[:, :3]).sum()


WRONG = {
    cls.__name__: cls
    for cls in (
        Branches, Selects, ReadsNumber, NotScalar, WritesInput, NothingToTrain, WrongShapes
    )
}  # fmt: skip


def branches(batch: int, seed: int) -> TrainingStep:
    return wrong_step("Branches", batch)


def wrong_step(name: str, batch: int = 4) -> TrainingStep:
    x = torch.ones(batch, 4)
    return TrainingStep(model=WRONG[name](), example_inputs=(x,), batches=lambda step: (x,))


def _of_linear(
    batches: Callable[[int], object], loss: object = None
) -> Callable[[int, int], TrainingStep]:
    def made(batch: int, seed: int) -> TrainingStep:
        x = torch.zeros(batch, 3)
        return TrainingStep(nn.Linear(3, 1), (x,), batches, loss)  # type: ignore[arg-type]

    return made


loss_is_a_function = _of_linear(lambda step: (torch.zeros(2, 3),), nn.functional.mse_loss)
shorter_batch = _of_linear(lambda step: (torch.zeros(2 - step, 3),))
other_type = _of_linear(lambda step: (torch.zeros(2, 3, dtype=torch.float64),))
too_few = _of_linear(lambda step: ())
no_tensors = _of_linear(lambda step: {"x": torch.zeros(2, 3)})
failing_batch = _of_linear(lambda step: (torch.zeros(2, 3) @ torch.zeros(2, 3),))
list_of_tensors = _of_linear(lambda step: [torch.zeros(2, 3)])
